"""``python -m jobs.lab study STUDY.toml``: grids of runs, each a separate job, and their result tables.

Decided: speed and quality of the quickstart's configuration by algorithm, by pairs of seeds, and that a warm-up removes
its outliers (RESULTS.md). Last run at bd89bde14880.
"""
