"""A lock over memory that ranks of a host share. Compiled code can take it without the interpreter's lock, so that who
holds it never waits for that.

The kernel keeps it (``flock`` on the memory's file): who waits sleeps, and what a process holds ends with the process.
"""

from __future__ import annotations

import fcntl
import os
import weakref
from types import TracebackType
from typing import Any

from numba import njit, types

from ssmpi.comm.shared_memory import open_file

_flock: Any = types.ExternalFunction("flock", types.int32(types.int32, types.int32))
_EXCLUSIVE, _FREE = fcntl.LOCK_EX, fcntl.LOCK_UN


class SharedLock:
    """The lock of memory by its ``file``, which ``take`` and ``leave`` need too and which is closed with this. Whoever
    opened it anew excludes all others, threads of the same process included.
    """

    def __init__(self, file: int) -> None:
        self.file = file
        weakref.finalize(self, os.close, file)

    @classmethod
    def at(cls, address: str | bytes) -> SharedLock:
        """That of another process's memory; OSError says why it cannot be opened."""
        return cls(open_file(address))

    def __enter__(self) -> None:
        fcntl.flock(self.file, fcntl.LOCK_EX)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        fcntl.flock(self.file, fcntl.LOCK_UN)


@njit(cache=True, nogil=True)
def take(file: int) -> bool:
    """Wait for the lock; False without it where a signal has interrupted that, or the file is not open."""
    return _flock(file, _EXCLUSIVE) == 0


@njit(cache=True, nogil=True)
def leave(file: int) -> None:
    """Give it back."""
    _flock(file, _FREE)
