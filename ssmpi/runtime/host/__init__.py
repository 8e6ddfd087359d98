"""Facts about the host of a process: memory, CPU, clock, launcher, MPI environment, versions."""
