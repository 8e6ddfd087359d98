"""The folders in a memory file system that hold the ranks' state for the next start of their job; one for each
launch.
"""

from __future__ import annotations

import os
import stat
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


def is_of_launch(folder: Path) -> bool:
    """Whether a folder has the name of this user's folder of a launch."""
    return folder.name.startswith(f"ssmpi-{os.geteuid()}-")


def make(folder: Path) -> None:
    """Make the folder of a launch, unless it is there; PermissionError if another user could read or change what is in
    it: memory file systems are open to all users of a host.
    """
    folder.mkdir(mode=0o700, exist_ok=True)
    check(folder)


def check(folder: Path) -> None:
    """Raise PermissionError if a launch's folder is not this user's alone; FileNotFoundError if it is not there."""
    above, found = folder.parent.stat(), folder.lstat()
    if above.st_mode & stat.S_IWOTH and not above.st_mode & stat.S_ISVTX:
        raise PermissionError(
            f"{folder.parent}: every user may replace what is in it (mode {stat.S_IMODE(above.st_mode):04o}): set its"
            " sticky bit (chmod +t)"
        )
    if not stat.S_ISDIR(found.st_mode):
        raise PermissionError(f"{folder}: not a folder but {'a link' if folder.is_symlink() else 'a file'}: remove it")
    if found.st_uid != os.geteuid() or found.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise PermissionError(
            f"{folder}: it is user {found.st_uid}'s, with mode {stat.S_IMODE(found.st_mode):04o}, not user"
            f" {os.geteuid()}'s with mode 0700: remove it"
        )


def all_in(memory: Path) -> list[Path]:
    """The folders of all launches of this user on this host."""
    return [path for path in sorted(memory.glob(f"ssmpi-{os.geteuid()}-*")) if _is_own_folder(path)]


def _is_own_folder(path: Path) -> bool:
    """Whether it is this user's, and no link or file; False if it is gone."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return False
    return found.st_uid == os.geteuid() and stat.S_ISDIR(found.st_mode)
