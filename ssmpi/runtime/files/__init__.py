"""Files of a run: their names, atomic and background writes, the log, the marker of how a run ended."""
