"""The mean over all trainers by one nonblocking all-reduce: what everything without a server is made of."""

from __future__ import annotations

import numpy as np

from ssmpi.comm.waiting import wait
from ssmpi.sync.base import Peers


class Average:
    """Weighted means of vectors of at most ``size`` floats. The sum of the weights travels in the same buffer."""

    def __init__(self, peers: Peers, size: int) -> None:
        self._peers, self._buffer = peers, np.empty(size + 1, np.float32)

    def of(self, vector: np.ndarray, weight: float = 1.0) -> np.ndarray | None:
        """Mean of ``vector``, None if every trainer has weight 0. All trainers must call; valid until the next call."""
        buffer = self._buffer[: vector.size + 1]
        if weight:
            np.multiply(vector, np.float32(weight), out=buffer[:-1])
        else:
            buffer[:-1] = 0.0
        buffer[-1] = weight
        wait(self._peers.trainers.iallreduce(buffer), self._peers.patience, "the other trainers' round")
        total = buffer[-1]
        if total == 0:
            return None
        buffer[:-1] /= total
        return buffer[:-1]
