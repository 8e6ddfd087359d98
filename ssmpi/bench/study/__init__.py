"""Grids of runs, each a job of its own, and the tables made of them."""
