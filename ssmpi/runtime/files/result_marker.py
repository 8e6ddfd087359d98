"""``result.json``, which a run writes last: its status is the only record of how the run ended. Exit codes do not
tell.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ssmpi.runtime.documents import parse_json
from ssmpi.runtime.errors import json_problem
from ssmpi.runtime.files.run_files import RESULT_NAME

COMPLETE = "complete"  # all examples, or a rule ended the run; nothing is left to do
STOPPED = "stopped"  # stopped on request after saving: the run can be resumed
INCOMPLETE = "incomplete"  # it ended on its own and examples are missing, which is a bug


def read(run: Path) -> dict[str, Any]:
    """The contents of the marker; empty if it is missing or unreadable."""
    try:
        found = parse_json((run / RESULT_NAME).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def damage(run: Path) -> str:
    """What is wrong with the marker; empty if it is whole, or not there."""
    try:
        found = parse_json((run / RESULT_NAME).read_text(encoding="utf-8"))
        return "" if isinstance(found["status"], str) and found["status"] else "it has no status"
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except (OSError, ValueError, KeyError, TypeError) as error:
        return json_problem(error)


def status(run: Path) -> str:
    """``COMPLETE``, ``STOPPED`` or ``INCOMPLETE``; empty where no run has ended."""
    return str(read(run).get("status", ""))


def is_finished(run: Path) -> bool:
    """Whether nothing is left to do in this run."""
    return status(run) == COMPLETE
