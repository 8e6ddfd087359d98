"""``python -m ssmpi.environment`` prints the shell exports that an MPI job needs. Users' batch files contain this
name.
"""

from ssmpi.runtime.host.mpi_environment import main

if __name__ == "__main__":
    main()
