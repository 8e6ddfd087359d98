"""``ssmpi bench recovery``: the cost of lost embedding PSs and their effect on quality, by strategy, as in CPR's
emulation.
"""
