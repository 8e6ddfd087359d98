"""Runs measured jobs: ranks, windows, probes, counters, and the rows they read."""
