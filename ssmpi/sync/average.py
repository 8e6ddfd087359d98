"""The mean over all trainers by one nonblocking all-reduce, the building block of the algorithms without servers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ssmpi.runtime.mpi.waiting import WaitOptions, wait

if TYPE_CHECKING:
    from ssmpi.runtime.mpi.messages import Conversation


def reduced_bytes(size: int, ranks: int) -> float:
    """The bytes that each of ``ranks`` ranks sends for a ring all-reduce of ``size`` bytes."""
    return 2 * (ranks - 1) * size / ranks


class Average:
    """Weighted means of vectors of at most ``size`` floats. The sum of the weights travels in the same buffer."""

    def __init__(self, trainers: Conversation, waiting: WaitOptions, size: int) -> None:
        self._trainers, self._waiting = trainers, waiting
        self._buffer = np.empty(size + 1, np.float32)

    def of(self, vector: np.ndarray, weight: float = 1.0) -> np.ndarray | None:
        """Mean of ``vector``, None if every trainer has weight 0. All trainers must call; valid until the next call."""
        total = self.space(vector.size)
        if weight:
            np.multiply(vector, np.float32(weight), out=total)
        else:
            total[:] = 0.0
        return self.of_sums(total.size, weight)

    def space(self, size: int) -> np.ndarray:
        """Space for a weighted sum of ``size`` floats, to be filled before ``of_sums``."""
        return self._buffer[:size]

    def of_sums(self, size: int, weight: float) -> np.ndarray | None:
        """As ``of``; ``space(size)`` holds the sum of the vectors that this rank represents, with their total
        ``weight``.
        """
        buffer = self._buffer[: size + 1]
        buffer[-1] = weight
        if self._trainers.size > 1:
            wait(self._trainers.iallreduce(buffer), self._waiting, "the other trainers' round")
        total = buffer[-1]
        if total == 0:
            return None
        buffer[:-1] /= total
        return buffer[:-1]
