"""What everything else stands on: errors, log, settings, topology, metrics, files; imports nothing of ssmpi above it."""
