"""The lowest layer: errors, log, settings, topology, metrics, files. It imports no other package of ssmpi."""
