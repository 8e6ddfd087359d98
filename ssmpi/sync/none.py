"""No synchronization: Local SGD that never averages. The upper bound of throughput, and for one trainer the exact
reference.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ssmpi.runtime.mpi.waiting import wait
from ssmpi.sync.base import Exchange, Synchronizer
from ssmpi.sync.options import RoundOptions
from ssmpi.sync.round_context import RoundContext


@dataclass(frozen=True)
class NoSyncOptions:
    """``[sync.none]`` has no settings."""


class NoExchange(Exchange):
    """Nobody to exchange with; the model is the first trainer's replica."""

    def reference(self, snapshot: np.ndarray, active: bool) -> np.ndarray | None:
        """Nothing."""
        return None

    def model(self) -> np.ndarray:
        """The first trainer's replica."""
        vector = self.weights.copy()
        wait(self.context.replicas.ibcast(vector), self.context.waiting, "the other trainers")
        return vector


class NoSync(Synchronizer):
    """Rounds do nothing."""

    Options: ClassVar[type] = NoSyncOptions
    partner = ""

    def __init__(self, options: RoundOptions, exchange: Exchange) -> None:
        super().__init__(options, exchange)
        self.idle = True

    @classmethod
    def make_exchange(
        cls, options: RoundOptions, weights: np.ndarray, context: RoundContext, thread: int = 0
    ) -> NoExchange:
        """With nobody."""
        return NoExchange(options, weights, context)
