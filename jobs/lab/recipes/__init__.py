"""``python -m jobs.lab recipes``: one recipe by ssmpi and by FuxiCTR, by pairs of seeds.

jobs/studies/RECIPES.md says what came out.
"""
