"""Records where each job of a run began, to refuse a run that is restarted again and again without progress."""

from __future__ import annotations

import json
from pathlib import Path

from ssmpi.core.errors import UserError
from ssmpi.files import atomic_file
from ssmpi.files.run_files import ATTEMPTS

STARTS_WITHOUT_PROGRESS = 2


def record_start(run: Path, examples: int) -> None:
    """Record that a job begins after ``examples``; UserError if the last two began there and saved nothing later."""
    path = run / ATTEMPTS
    try:
        before = [int(place) for place in json.loads(path.read_text(encoding="utf-8"))]
    except (OSError, ValueError, TypeError):
        before = []
    if before[-STARTS_WITHOUT_PROGRESS:] == [examples] * STARTS_WITHOUT_PROGRESS:
        raise UserError(
            f"{run}: the last {STARTS_WITHOUT_PROGRESS} jobs of this run began after {examples:,} examples, as this one"
            " would, and saved nothing later: their logs say why; if it was the time limit, raise it or lower"
            f" checkpoint.every_minutes. Remove {path} to try again"
        )
    atomic_file.write(path, json.dumps([*before, examples]) + "\n")
