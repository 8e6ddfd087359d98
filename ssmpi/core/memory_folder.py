"""The folders in a memory file system that hold the ranks' state for the next start of their job; one for each
launch.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

IN_MEMORY = ("tmpfs", "ramfs")  # kinds of file systems


class FileSystem(NamedTuple):
    """The file system of a folder; ``size`` and ``free`` are bytes, ``kind`` is empty if unknown."""

    kind: str
    size: int
    free: int

    @property
    def in_memory(self) -> bool:
        """Whether it keeps its files in memory only."""
        return self.kind in IN_MEMORY


def file_system(folder: Path, mounts: Path = Path("/proc/self/mounts")) -> FileSystem:
    """The file system of a folder that is there; OSError if it is not."""
    found, real = os.statvfs(folder), folder.resolve()
    kinds = {}
    for line in mounts.read_text(encoding="utf-8", errors="replace").splitlines() if mounts.exists() else ():
        _, place, kind, *_ = line.split(" ")
        kinds[Path(place.replace("\\040", " "))] = kind  # of two mounts at one place the later one is visible
    kind = next((kinds[each] for each in (real, *real.parents) if each in kinds), "")
    return FileSystem(kind, found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize)


def of_launch(memory: str, launch: str) -> Path:
    """The folder of one launch, on each of its hosts."""
    return Path(memory) / f"ssmpi-{os.geteuid()}-{launch}"


def all_in(memory: Path) -> list[Path]:
    """The folders of all launches of this user on this host."""
    return [path for path in sorted(memory.glob(f"ssmpi-{os.geteuid()}-*")) if _owner(path) == os.geteuid()]


def _owner(path: Path) -> int:
    """The owner's user id; -1 if the folder is gone."""
    try:
        return path.lstat().st_uid
    except FileNotFoundError:
        return -1
