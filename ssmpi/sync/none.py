"""No synchronization: Local SGD that never averages. The upper bound of throughput, and for one trainer the exact
reference.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ssmpi.comm.waiting import wait
from ssmpi.sync.base import Synchronizer


@dataclass(frozen=True)
class NoSyncOptions:
    """``[sync.none]`` has no settings."""


class NoSync(Synchronizer):
    """Rounds do nothing; the model is the first trainer's replica."""

    Options: ClassVar[type] = NoSyncOptions
    partner = ""
    idle = True

    def exchange(self, snapshot: np.ndarray, fragment: int, active: bool) -> np.ndarray | None:
        """Nothing to exchange."""
        return None

    def close(self) -> None:
        """Nobody waits for this trainer."""

    def model(self) -> np.ndarray:
        """The first trainer's replica."""
        vector = self.weights.copy()
        wait(self.context.trainers.ibcast(vector), self.context.waiting, "the other trainers")
        return vector
