"""Helpers of compiled code: ``njit``, aligned arrays, cache lines, arrays passed by address, atomics, bfloat16."""
