"""Every change that saving makes on disk goes through these few calls, so that a test can end the process, or fail the
disk, at each of them. They say where and why an operation failed; nothing is durable before it was synced.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path


def make_folder(path: Path) -> None:
    """Make a folder in one that is there; it may be there itself."""
    path.mkdir(exist_ok=True)


def write(path: Path, content: bytes) -> None:
    """Write a small file whole and sync it."""
    with path.open("wb") as out:
        out.write(content)
        sync(out.fileno())


def write_at(descriptor: int, content: memoryview, offset: int) -> None:
    """Write all of ``content`` at ``offset`` of an open file. Does not hold the interpreter lock."""
    while content:
        written = os.pwrite(descriptor, content, offset)
        content, offset = content[written:], offset + written


def sync(descriptor: int) -> None:
    """Bring an open file to the disk."""
    os.fsync(descriptor)


def sync_folder(path: Path) -> None:
    """Bring the names in a folder to the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def rename(old: Path, new: Path) -> None:
    """Put a file or a folder in its place at once; a file that was there is replaced."""
    old.replace(new)


def remove_file(path: Path) -> None:
    """Remove a file; it may be gone."""
    path.unlink(missing_ok=True)


def remove_folder(path: Path) -> None:
    """Remove a folder with all that is in it."""
    shutil.rmtree(path)
