"""Every disk operation of saving goes through these few calls, so that a test can kill the process, or make the disk
fail, at each of them. They say where and why an operation failed; nothing is durable before it was synced.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from ssmpi.runtime.files import atomic_file
from ssmpi.runtime.mpi.failure import NO_ROOM


def free(path: Path) -> int:
    """Free bytes on the disk of a folder or file."""
    found = os.statvfs(path if path.is_dir() else path.parent)
    return found.f_bavail * found.f_frsize


@contextlib.contextmanager
def needing(path: Path, size: int) -> Iterator[None]:
    """Make OSErrors in the block name the file being written and, if the disk is full, how many bytes it needs and how
    many are free: the system names neither.
    """
    try:
        yield
    except OSError as error:
        if error.errno in NO_ROOM:
            text = f"{error.strerror}: {size:,} bytes needed, {free(path):,} free"
            raise OSError(error.errno, text, str(path)) from error
        if error.filename is None:
            error.filename = str(path)
        raise


def make_folder(path: Path) -> None:
    """Make a folder, which may exist already, in an existing one."""
    path.mkdir(exist_ok=True)


def make_folders(path: Path) -> None:
    """Make a folder, which may exist already, and those above it; they survive a power cut."""
    missing = [each for each in (path, *path.parents) if not each.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for each in missing:
        sync_folder(each.parent)


@contextlib.contextmanager
def created(path: Path) -> Iterator[int]:
    """A new file, open for writing while the block runs."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o666)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def opened(path: Path, *, write: bool = False) -> Iterator[int]:
    """An existing file, open while the block runs, for reading or also for writing."""
    descriptor = os.open(path, os.O_RDWR if write else os.O_RDONLY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def write(path: Path, content: bytes) -> None:
    """Write a small file and sync it."""
    with needing(path, len(content)), created(path) as descriptor:
        write_at(descriptor, memoryview(content), 0)
        sync(descriptor)


def write_at(descriptor: int, content: memoryview, offset: int) -> None:
    """Write all of ``content`` at ``offset`` of an open file. Does not hold the GIL."""
    while content:
        written = os.pwrite(descriptor, content, offset)
        content, offset = content[written:], offset + written


def truncate(descriptor: int, size: int) -> None:
    """Truncate an open file to ``size`` bytes."""
    os.ftruncate(descriptor, size)


def sync(descriptor: int) -> None:
    """Flush an open file to disk."""
    os.fsync(descriptor)


def sync_folder(path: Path) -> None:
    """Flush the names in a folder to disk."""
    atomic_file.sync_folder(path)


def rename(old: Path, new: Path) -> None:
    """Rename a file or folder atomically; an existing file is replaced."""
    old.replace(new)


def remove_file(path: Path) -> None:
    """Remove a file if it exists."""
    path.unlink(missing_ok=True)


def remove_folder(path: Path) -> None:
    """Remove a folder with all that is in it."""
    shutil.rmtree(path)
