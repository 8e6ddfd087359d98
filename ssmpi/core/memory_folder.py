"""The folders in a memory file system that hold what the ranks of a launch leave for the next start of their job."""

from __future__ import annotations

import os
from pathlib import Path


def of_launch(memory: str, launch: str) -> Path:
    """The folder of one launch, on each of its hosts."""
    return Path(memory) / f"ssmpi-{os.geteuid()}-{launch}"


def all_in(memory: Path) -> list[Path]:
    """The folders of all launches of this user on this host."""
    return [path for path in sorted(memory.glob(f"ssmpi-{os.geteuid()}-*")) if path.stat().st_uid == os.geteuid()]
