"""Model averaging, S-MA and FR-MA (ShadowSync, arXiv 2003.03477)::

    u   = (1/n) sum_i w_i          over a snapshot of every trainer's replica, by nonblocking all-reduce
    w_i = w_i + alpha (u - snapshot_i)      Local SGD: alpha = 1, fixed_rate; the default of 0.5 takes half of that step

A trainer that is out of data takes part with weight 0, and the count of active ones travels in the reduced buffer, so
n is those that still train. When it reaches 0, all of them leave in the same round.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ssmpi.sync.average import Average
from ssmpi.sync.base import Peers, Synchronizer


@dataclass(frozen=True)
class Options:
    """``[sync.ma]`` has no settings of its own."""


class MA(Synchronizer):
    """Moves towards the mean of the trainers that still train."""

    Options = Options

    def __init__(self, options: object, weights: np.ndarray, peers: Peers) -> None:
        super().__init__(options, weights, peers)
        self.average = Average(peers, weights.size)

    @property
    def idle(self) -> bool:
        """One trainer alone is its own mean."""
        return self.peers.trainers.size == 1

    def exchange(self, snapshot: np.ndarray, fragment: int, active: bool) -> np.ndarray | None:
        """The mean of the snapshots."""
        return self.average.of(snapshot, active)

    def close(self) -> None:
        """Follow the mean of those that still train, until nobody does."""
        while self.step(active=False):
            pass

    def model(self) -> np.ndarray:
        """The mean of all replicas."""
        mean = self.average.of(self.weights)
        assert mean is not None
        return mean.copy()
