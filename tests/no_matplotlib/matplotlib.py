"""Found before the real one by jobs that draw no plot: see ``runs.without_plot``."""

raise ImportError("hidden from this job")
