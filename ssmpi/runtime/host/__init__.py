"""What a process learns about the host it is on: memory, CPU, clock, launcher, MPI environment, versions."""
