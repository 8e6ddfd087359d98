"""A lock for memory that ranks of a host share. Compiled code takes it without the GIL, so its holder never waits for
the GIL. It is a ``flock`` on the memory's file: waiters sleep, and the kernel releases the lock when its holder dies.
"""

from __future__ import annotations

import fcntl
import os
import weakref
from types import TracebackType
from typing import Any

from numba import types

from ssmpi.runtime.compiled.jit import njit
from ssmpi.runtime.mpi.shared_memory import open_file

_flock: Any = types.ExternalFunction("flock", types.int32(types.int32, types.int32))
_EXCLUSIVE, _FREE = fcntl.LOCK_EX, fcntl.LOCK_UN


class SharedLock:
    """The lock on the open ``file`` of some memory, which ``take`` and ``leave`` use too and which is closed with this
    object. Each separate open of the file is a holder of its own, also among the threads of one process.
    """

    def __init__(self, file: int) -> None:
        self.file = file
        weakref.finalize(self, os.close, file)

    @classmethod
    def at(cls, address: str | bytes) -> SharedLock:
        """The lock of another process's memory; OSError says why it cannot be opened."""
        return cls(open_file(address))

    def __enter__(self) -> None:
        fcntl.flock(self.file, fcntl.LOCK_EX)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        fcntl.flock(self.file, fcntl.LOCK_UN)


@njit(cache=True, nogil=True)
def take(file: int) -> bool:
    """Wait for the lock; False, without the lock, if a signal interrupted the wait or the file is not open."""
    return _flock(file, _EXCLUSIVE) == 0


@njit(cache=True, nogil=True)
def leave(file: int) -> None:
    """Release the lock."""
    _flock(file, _FREE)
