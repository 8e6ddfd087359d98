"""Training in lockstep: several trainers in one process, with a result that depends on the seeds alone."""
