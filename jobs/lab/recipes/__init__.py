"""``python -m jobs.lab recipes``: one recipe by ssmpi and by FuxiCTR, by pairs of seeds.

Nothing is decided yet: jobs/studies/RECIPES.md. Not run.
"""
