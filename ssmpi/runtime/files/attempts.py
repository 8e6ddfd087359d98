"""``attempts.json``: after how many examples each job of a run began, to give up a run that gets nowhere."""

from __future__ import annotations

import json
from pathlib import Path

from ssmpi.runtime.documents import parse_json
from ssmpi.runtime.files import atomic_file
from ssmpi.runtime.files.run_files import ATTEMPTS

NOT_BEGUN = -1  # in place of the examples: the job ended before all its ranks had started
MOST = 2  # jobs in a row without progress


def read(run: Path) -> list[int]:
    """One entry for each job, oldest first; none if the file is not there, or damaged."""
    try:
        return [int(place) for place in parse_json((run / ATTEMPTS).read_text(encoding="utf-8"))]
    except (OSError, ValueError, TypeError):
        return []


def add(run: Path, examples: int) -> None:
    """Append a job's entry."""
    atomic_file.write(run / ATTEMPTS, json.dumps([*read(run), examples]) + "\n")
