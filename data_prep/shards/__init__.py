"""HDF5 shards and the output folder: layout, packing, scattering and gathering of rows, provenance."""
