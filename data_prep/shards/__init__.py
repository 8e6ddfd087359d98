"""HDF5 shards and the output folder: packing, scattering and gathering of rows, provenance."""
