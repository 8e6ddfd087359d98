"""Runs commands of the laboratory as a user does."""

import sys
from pathlib import Path

from ranks import PATIENCE, TESTS, WITHOUT_EXTRAS, Running, full_environment, python_path

CHECKOUT = Path(__file__).parents[2]


def running(*words, without=WITHOUT_EXTRAS, environ=()):
    """``python -m jobs.lab WORDS``, started."""
    path = python_path(*without, TESTS, CHECKOUT)
    command = [sys.executable, "-m", "jobs.lab", *map(str, words)]
    return Running(command, full_environment({"PYTHONPATH": path, **dict(environ)}))


def lab(*words, timeout=PATIENCE, **how):
    """The same, to its end."""
    job = running(*words, **how)
    try:
        return job.wait(timeout)
    finally:
        job.close()
