"""HDF5 shards and their folder: splits, scattering rows, ranks, records."""
