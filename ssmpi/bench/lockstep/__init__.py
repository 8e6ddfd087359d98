"""Training in lockstep: a run of several trainers in one process whose result depends on its seeds alone."""
