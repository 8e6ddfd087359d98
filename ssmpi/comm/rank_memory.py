"""The memory that holds a rank's state: it ends with the process, or outlives it (``memory_file``)."""

from __future__ import annotations

import os
from typing import Any, Protocol

import numpy as np
from numpy.typing import DTypeLike

from ssmpi.comm.shared_memory import Memory, PrivateMemory, SharedMemory


class RankMemory(Protocol):
    """The memory that holds a rank's state; ``kept`` if an earlier process has filled it."""

    @property
    def kept(self) -> bool:
        """Whether arrays and notes are those of an earlier process, and must not be initialized."""

    def part(self, name: str, *, shared: bool) -> Memory:
        """Memory for one array; other processes of the host can map it if it is ``shared``."""

    def array(self, name: str, shape: tuple[int, ...], dtype: DTypeLike) -> np.ndarray:
        """An array that only this rank uses: zeros, or as an earlier process left it."""

    def ready(self) -> None:
        """All arrays are there and filled."""

    def note(self, name: str, value: object) -> None:
        """Store a small JSON value under a name, atomically: a kill leaves either the old or the new one."""

    def noted(self, name: str) -> Any:
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

    def note(self, name: str, value: object) -> None:
        """Nothing to store."""

    def noted(self, name: str) -> Any:
        """Nothing."""
        return None

    def holds(self, name: str) -> bool:
        """Nothing."""
        return False

    def remove(self) -> None:
        """Nothing is left anyway."""
