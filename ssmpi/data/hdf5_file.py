"""HDF5 files that take their room on the disk before they are written, and the frame of a shard: all bytes of its file
around the columns. The HDF5 library interprets them, so they are verified before it opens the file.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import hashlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from ssmpi.runtime.files.atomic_file import WRITE_BYTES

OVERHEAD = 1 << 14  # bytes of headers, and for each group
KEEP_SIZE = 1  # of fallocate(2): the file does not become longer
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

Frame = dict[str, Any]  # "columns": (offset, bytes) of each in the file; "frame": checksum of the bytes around them

_libc = ctypes.CDLL(None, use_errno=True)


@contextlib.contextmanager
def create(path: Path, content: int) -> Iterator[h5py.File]:
    """Yield a new HDF5 file for ``content`` bytes of columns, closed at the end of the block. OSError if the disk has
    no room for it.

    HDF5 does not recover from a write that fails: it tries again whenever an object of the file goes, and crashes at
    the end of the process. So the room is taken first, where the file system can do so; if there is none, what HDF5
    writes when it closes the file goes to memory.
    """
    with h5py.File(path, "w", locking=False) as out:  # its writer has locked it
        handle = out.id.get_vfd_handle()
        try:
            _reserve(handle, content + OVERHEAD)
        except OSError:
            memory = os.memfd_create(path.name)
            os.dup2(memory, handle)
            os.close(memory)
            raise
        yield out
    os.truncate(path, path.stat().st_size)  # gives back what was taken beyond the end


def write(out: h5py.Group, name: str, values: np.ndarray, dtype: str) -> None:
    """Write an array as a data set, about ``WRITE_BYTES`` at a time."""
    made = out.create_dataset(name, values.shape, dtype)
    rows = max(1, WRITE_BYTES * len(values) // max(1, values.nbytes))
    for first in range(0, len(values), rows):
        some = np.s_[first : first + rows]
        made.write_direct(np.ascontiguousarray(values[some]), dest_sel=some)


def _reserve(handle: int, size: int) -> None:
    if _libc.fallocate(handle, KEEP_SIZE, ctypes.c_longlong(0), ctypes.c_longlong(size)):
        number = ctypes.get_errno()
        if number in FULL:
            raise OSError(number, os.strerror(number))


def frame_of(path: Path) -> Frame:
    """The record of a sound shard file that ``open_shard`` compares it with, for the manifest."""
    with h5py.File(path, "r", locking=False) as shard:
        columns = sorted([c.id.get_offset(), c.id.get_storage_size()] for c in shard.values() if c.size)
    return {"columns": columns, "frame": frame_checksum(path, columns)}


def frame_checksum(path: Path, columns: Sequence[Sequence[int]]) -> str:
    """SHA-256 of what lies around the columns, (offset, bytes) extents in file order: all that HDF5 goes by."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        for offset, size in columns:
            if offset < file.tell():
                raise ValueError(f"a column at {offset}, but the one before ends at {file.tell()}")
            digest.update(file.read(offset - file.tell()))
            file.seek(offset + size)
        digest.update(file.read())
    return digest.hexdigest()
