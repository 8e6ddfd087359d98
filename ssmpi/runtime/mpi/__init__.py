"""Everything that uses MPI: joining the job, communicators, waiting, serving, failure handling. Only this package
imports mpi4py.
"""
