"""Where the state of a rank lies: in memory that goes with its process, or that outlives it (``memory_file``)."""

from __future__ import annotations

import os
from typing import Any, Protocol

import numpy as np
from numpy.typing import DTypeLike

from ssmpi.comm.shared_memory import Memory, PrivateMemory, SharedMemory


class RankMemory(Protocol):
    """Where the state of a rank lies; ``kept`` if it holds what an earlier process has left."""

    @property
    def kept(self) -> bool:
        """Whether arrays and notes are those of an earlier process, which nobody is to fill."""

    def part(self, name: str, *, shared: bool) -> Memory:
        """Memory for one array, which other processes of the host can map if it is ``shared``."""

    def array(self, name: str, shape: tuple[int, ...], dtype: DTypeLike) -> np.ndarray:
        """An array of this rank alone: of zeros, or kept."""

    def ready(self) -> None:
        """All arrays are there and filled."""

    def note(self, name: str, value: Any) -> None:
        """Keep a small value, as JSON has it, in place of the last one of this name: whole, whenever a kill comes."""

    def noted(self, name: str) -> Any:
        """The last value of this name; None if there is none."""

    def holds(self, name: str) -> bool:
        """Whether an array of this name is there and filled: by an earlier process, or by this one before its role
        began.
        """

    def remove(self) -> None:
        """The run is over here: nobody will go on with it."""


class ProcessMemory:
    """Goes with its process."""

    kept = False

    def part(self, name: str, *, shared: bool) -> Memory:
        """As ``RankMemory``."""
        return SharedMemory() if shared and hasattr(os, "memfd_create") else PrivateMemory()

    def array(self, name: str, shape: tuple[int, ...], dtype: DTypeLike) -> np.ndarray:
        """As ``RankMemory``."""
        return np.zeros(shape, dtype)

    def ready(self) -> None:
        """Nobody will look."""

    def note(self, name: str, value: Any) -> None:
        """Nobody will ask."""

    def noted(self, name: str) -> Any:
        """Nothing."""
        return None

    def holds(self, name: str) -> bool:
        """Nothing."""
        return False

    def remove(self) -> None:
        """Nothing is left anyway."""
