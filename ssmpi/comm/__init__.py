"""Everything that speaks MPI: joining and splitting the world, waiting, serving, failing. Only this package imports mpi4py."""
