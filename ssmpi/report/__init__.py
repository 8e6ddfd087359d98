"""Runs and groups of runs as text, plots and pages, from the contents of their folders."""

from ssmpi.report.figures import plot
from ssmpi.report.page import write
from ssmpi.report.reader import read
from ssmpi.report.summary import table

__all__ = ["plot", "read", "table", "write"]
