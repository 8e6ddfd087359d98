"""Grids of runs, each a separate job, and their result tables."""
