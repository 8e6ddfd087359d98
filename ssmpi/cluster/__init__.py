"""Where ranks go and how they are started: sites, nodes, launchers, SLURM."""
