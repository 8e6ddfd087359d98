"""How a measured job runs: its ranks, windows, probes, counters and the rows it reads."""
