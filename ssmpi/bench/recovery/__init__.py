"""``ssmpi bench recovery``: what losses of embedding PSs cost and do to quality, by strategy, as in CPR's emulation."""
