"""Reserves space in a memory file system before it is used: touching pages that cannot be allocated kills the process
(SIGBUS), and a job beyond its batch system's memory limit is killed as well.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from ssmpi.host.host_memory import free_memory

NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def reserve(file: int, folder: Path, start: int, size: int) -> str:
    """Reserve ``size`` bytes of an open file from ``start``, which grows it if they lie beyond its end, if its file
    system, the machine and the control group have room; otherwise return why not. Ranks with files in the same
    ``folder`` take turns, or they would count on the same free space.
    """
    with _in_turn(folder):
        system = os.fstatvfs(file)
        return reserve_within(file, start, size, min(system.f_bavail * system.f_frsize, free_memory()))


def reserve_within(file: int, start: int, size: int, room: float) -> str:
    """The same if so many bytes are free, for files that no other rank grows."""
    if size > room:
        return f"{size:,} bytes are needed, {int(room):,} are free"
    try:
        if size:
            os.posix_fallocate(file, start, size)
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        return f"{size:,} bytes are needed: {error.strerror}"
    return ""


@contextlib.contextmanager
def _in_turn(folder: Path) -> Iterator[None]:
    held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield
    finally:
        os.close(held)
