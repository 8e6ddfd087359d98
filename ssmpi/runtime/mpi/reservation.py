"""Reserves space in a memory file system before it is used: touching pages that cannot be allocated kills the process
(SIGBUS), and a job beyond its batch system's memory limit is killed as well. Memory that comes in steps is promised
first: its addresses are there, for those who map it, and each step is reserved when it is needed.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from ssmpi.runtime.host.host_memory import free_memory

NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.ENOMEM)
SEGMENT = "sm_segment."  # how names of Open MPI's files begin
BLOCK = 512  # bytes, of st_blocks


def reserve(file: int, folder: Path, start: int, size: int) -> str:
    """Grow an open file from ``start`` by ``size`` bytes if its file system, the machine and the control group have
    room; otherwise return why not. Ranks with files in the same ``folder`` take turns, or they would count on the same
    free space, and what they have ``promised`` each other is not free.
    """
    with _in_turn(folder):
        return allocate(file, start, size, min(_free(file) - promised(folder), free_memory()))


def promise(file: int, folder: Path, more: slice, first: Sequence[slice]) -> str:
    """Grow an open file by these bytes if its file system has room for them, some time, and reserve the ``first`` among
    them now; otherwise return why not.
    """
    with _in_turn(folder):
        if why := lacking(more.stop - more.start, _free(file) - promised(folder)):
            return why
        os.truncate(file, more.stop)
    whys = (keep(file, folder, more.start + some.start, some.stop - some.start) for some in first)
    return next(filter(None, whys), "")


def keep(file: int, folder: Path, start: int, size: int) -> str:
    """Reserve some of the bytes that were promised; why there is no room for them after all, empty if there is."""
    with _in_turn(folder):
        return allocate(file, start, size, min(_free(file), free_memory()))


def allocate(file: int, start: int, size: int, room: float) -> str:
    """Allocate bytes of an open file, which grows if they lie beyond its end, if there is ``room`` for so many; why
    there is none, empty if there is. Those that are there already stay as they are.
    """
    if not size or size > room:
        return lacking(size, room)
    try:
        os.posix_fallocate(file, start, size)
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        return f"{size:,} bytes are needed: {error.strerror}"
    return ""


def lacking(size: int, room: float) -> str:
    """That there is no ``room`` for so many bytes; empty if there is."""
    return f"{size:,} bytes are needed, {int(room):,} are free" if size > room else ""


def promised(folder: Path) -> int:
    """Bytes of the ranks' files in a folder that are not there yet. Open MPI's segments, which it places beside them
    and fills to a small part, are no promises.
    """
    found = 0
    for path in folder.iterdir():
        if path.name.startswith(SEGMENT):
            continue
        with contextlib.suppress(FileNotFoundError):  # a rank that ends removes its own
            status = path.stat()
            found += max(0, status.st_size - BLOCK * status.st_blocks)
    return found


def _free(file: int) -> int:
    """Bytes that are left in the file system of an open file."""
    system = os.fstatvfs(file)
    return system.f_bavail * system.f_frsize


@contextlib.contextmanager
def _in_turn(folder: Path) -> Iterator[None]:
    try:
        held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:  # somebody removed it: files that are mapped stay, and are not found any more
        yield
        return
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield
    finally:
        os.close(held)
