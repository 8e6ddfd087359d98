"""Errors that the user can fix, with a remedy in the message; every module raises these, the command line prints them.

An ``assert`` elsewhere means a bug in ssmpi.
"""

from __future__ import annotations

import json
from pathlib import Path

STOPPED = 85  # exit code of a run that was asked to stop and can be resumed
LOST = 86  # exit code of a run that lost a rank or a host: a restart may succeed
OUT_OF_MEMORY = "ran out of memory"  # said by whoever knows it, when ranks end for it
DIVERGED = "training has diverged"  # said by a TrainingError after which a run's state is worth nothing


class UserError(ValueError):
    """Bad input: the message says what was asked, what was found and what to do. Printed without a traceback."""


class SettingsError(UserError):
    """An invalid run file or override."""


class DataError(UserError):
    """A raw file, a shard or a manifest that is missing, damaged, foreign or inconsistent."""


class DamageError(DataError):
    """A damaged file. ``found`` says what is wrong with it; it is kept apart so that a list of several damaged files
    gives the remedy once.
    """

    def __init__(self, path: Path, found: str, remedy: str) -> None:
        super().__init__(path, found, remedy)  # all of them, so that it can be pickled
        self.path, self.found, self.remedy = path, found, remedy

    def __str__(self) -> str:
        return f"{self.path}: {self.found}; {self.remedy}"


class TopologyError(UserError):
    """Numbers of ranks, roles or threads that do not fit together."""


class TrainingError(UserError):
    """Training that cannot continue: a loss that is not finite, an id beyond its table."""


class LaunchError(RuntimeError):
    """A launched job has ended without a finished run, and not because of bad input."""


class PeerError(RuntimeError):
    """Another rank did not answer in time, or is gone."""


class ContentError(ValueError):
    """What is wrong with the contents of a file; the message does not name the file."""


def json_problem(error: Exception) -> str:
    """What is wrong with a JSON file, from the exception that reading it or taking values out of it has raised."""
    if isinstance(error, json.JSONDecodeError):
        return f"not JSON at line {error.lineno}, column {error.colno}" if error.doc.strip() else "empty"
    if isinstance(error, UnicodeDecodeError):
        return f"not UTF-8 text at byte {error.start}"
    if isinstance(error, UnicodeEncodeError):  # of its path
        return f"this locale's encoding of file names ({error.encoding}) lacks a letter of its path: set PYTHONUTF8=1"
    if isinstance(error, KeyError):
        return f"it has no {error.args[0]!r}"
    if isinstance(error, OSError):
        return f"cannot be read: {error.strerror}"
    if isinstance(error, ContentError | UserError):
        return str(error)
    return "its values are not of the expected kinds"
