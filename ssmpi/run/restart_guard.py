"""Remembers where each job of a run began, so that one which is started again and again in vain is told so."""

from __future__ import annotations

import json
from pathlib import Path

from ssmpi.checkpoint import disk
from ssmpi.core.errors import UserError
from ssmpi.core.run_files import ATTEMPTS

IN_VAIN = 2


def record_start(run: Path, examples: int) -> None:
    """Note that a job begins after ``examples``; UserError if the last two began there too and saved nothing beyond."""
    path = run / ATTEMPTS
    try:
        before = [int(place) for place in json.loads(path.read_text(encoding="utf-8"))]
    except (OSError, ValueError, TypeError):
        before = []
    if before[-IN_VAIN:] == [examples] * IN_VAIN:
        raise UserError(
            f"{run}: the last {IN_VAIN} jobs of this run began after {examples:,} examples, as this one would, and saved "
            "nothing beyond: look at their logs for the reason; if it was the time limit, raise it or lower "
            f"checkpoint.every_minutes. Remove {path} to try again"
        )
    beside = path.with_name(f".{ATTEMPTS}.tmp")
    disk.write(beside, (json.dumps([*before, examples]) + "\n").encode())
    disk.rename(beside, path)
