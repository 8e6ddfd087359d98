"""The vocabulary of all packages: errors, settings, topology, metrics, protocols. It imports no other package."""
