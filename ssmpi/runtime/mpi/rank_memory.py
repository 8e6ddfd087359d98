"""The memory that holds a rank's state: it ends with the process, or outlives it (``memory_file``)."""

from __future__ import annotations

import os
from enum import StrEnum
from typing import Any, Protocol

import numpy as np
from numpy.typing import DTypeLike

from ssmpi.runtime.mpi.shared_memory import Memory, PrivateMemory, SharedMemory


class PersistedKey(StrEnum):
    """The small values that ranks note in their memory. They are names of files: a change needs a new ``LAYOUT``."""

    RUN = "run"  # every rank, when its memory is made: the run folder
    ROW_SAVES = "row saves"  # an embedding PS's saver: when it last saved, and how long that took
    DEAL = "deal"  # a trainer's count of trained rows: what was dealt last
    PIECES = "pieces"  # the same: for how many pieces it has room
    FORGOTTEN = "forgotten"  # a trainer: the recovery whose outcome includes what it lost in flight
    BEGUN = "begun"  # the first trainer's checkpoints: the number of the newest one, which row saves refer to
    SAVED = "saved"  # their timer: after how many examples the last one was, and when, in seconds since boot
    RUN_SO_FAR = "run so far"  # the first trainer: what no other trainer has
    LEDGER = "ledger"  # the first trainer: which memory is valid, what was lost, and the outcome of a recovery


class ArrayMemory(Protocol):
    """Memory for arrays."""

    def part(self, name: str, *, shared: bool) -> Memory:
        """Memory for one array; other processes of the host can map it if it is ``shared``."""

    def array(self, name: str, shape: tuple[int, ...], dtype: DTypeLike) -> np.ndarray:
        """An array that only this rank uses: zeros, or as an earlier process left it."""

    def ready(self) -> None:
        """All arrays are there and filled."""


class RankMemory(ArrayMemory, Protocol):
    """The memory that holds a rank's state; ``kept`` if an earlier process has filled it."""

    @property
    def kept(self) -> bool:
        """Whether arrays and notes are those of an earlier process, and must not be initialized."""

    def note(self, name: PersistedKey, value: object) -> None:
        """Store a small JSON value under a name, atomically: a kill leaves either the old or the new one."""

    def noted(self, name: PersistedKey) -> Any:
        """The value stored under a name; None if there is none."""

    def holds(self, name: str) -> bool:
        """Whether an array of this name exists and is filled: by an earlier process, or by this one before its role
        started.
        """

    def remove(self) -> None:
        """The run is over: no later process will need it."""


class ProcessMemory:
    """Memory that ends with its process."""

    kept = False

    def part(self, name: str, *, shared: bool) -> Memory:
        """As ``RankMemory``."""
        return SharedMemory() if shared and hasattr(os, "memfd_create") else PrivateMemory()

    def array(self, name: str, shape: tuple[int, ...], dtype: DTypeLike) -> np.ndarray:
        """As ``RankMemory``."""
        return np.zeros(shape, dtype)

    def ready(self) -> None:
        """Nothing to mark."""

    def note(self, name: PersistedKey, value: object) -> None:
        """Nothing to store."""

    def noted(self, name: PersistedKey) -> Any:
        """Nothing."""
        return None

    def holds(self, name: str) -> bool:
        """Nothing."""
        return False

    def remove(self) -> None:
        """Nothing is left anyway."""
