"""Everything that speaks MPI: joining the job, communicators, waiting, serving, failing. Only this package imports
mpi4py.
"""
