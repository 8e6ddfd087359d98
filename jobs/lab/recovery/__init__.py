"""``python -m jobs.lab recovery``: the cost of lost embedding PSs and their effect on quality, by strategy, as in CPR's
emulation.

Decided: partial recovery costs less than a tenth of full recovery; CPR-MFU, SSU and SCAR lose 1.2 % of the updates
where CPR-vanilla loses 9.4 % (RECOVERY.md). Last run at fd4d878.
"""
