"""Helpers of compiled code: aligned arrays, cache lines, arrays passed by address, atomic words, bfloat16."""
