"""Runs and groups of runs as text, plots and pages, from the contents of their folders."""

from ssmpi.tools.report.expectations import course
from ssmpi.tools.report.figures import plot
from ssmpi.tools.report.groups import scored_unlike
from ssmpi.tools.report.page import write
from ssmpi.tools.report.record import read
from ssmpi.tools.report.summary import table

__all__ = ["course", "plot", "read", "scored_unlike", "table", "write"]
