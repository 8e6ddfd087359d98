"""HDF5 files that take their room on the disk before they are written."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
from collections.abc import Iterator
from pathlib import Path

import h5py
import numpy as np

from ssmpi.runtime.files.atomic_file import WRITE_BYTES

OVERHEAD = 1 << 14  # bytes of headers, and for each group
KEEP_SIZE = 1  # of fallocate(2): the file does not become longer
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

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
