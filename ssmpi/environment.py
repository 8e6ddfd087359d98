"""``python -m ssmpi.environment`` prints the shell exports that an MPI job needs. The name stands in users' batch
files.
"""

from ssmpi.core.mpi_environment import main

if __name__ == "__main__":
    main()
