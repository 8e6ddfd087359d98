"""SlowMo, slow momentum on model averaging (Wang, Tantia, Ballas, Rabbat, ICLR 2020, Algorithm 1)::

    u   = beta u + (x - mean_i w_i) / gamma       x: the slow weights, the same on every trainer
    x   = x - rate gamma u
    w_i = w_i + alpha (x - snapshot_i)            the paper restarts every replica from x: alpha = 1, fixed_rate

gamma is the learning rate of the fast steps. Only its changes matter, so the schedule's factor stands for it: the mean
over the trainers that still train, which travels in the reduced buffer, so that x stays the same everywhere. Under a
constant rate this is classical BMUF with momentum beta and eta = rate: what is learned once counts 1 / (1 - beta)
times, or 1 / (1 - alpha beta) where rate is 1 and alpha is not; beta = 0 and rate = 1 is model averaging. Optimizer
state stays with its trainer (the paper's "maintain").
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ssmpi.runtime.settings import require
from ssmpi.sync.base import Exchange
from ssmpi.sync.bmuf import BlockFiltered
from ssmpi.sync.options import RoundOptions


@dataclass(frozen=True)
class SlowMoOptions:
    """The ``[sync.slowmo]`` section, for ``sync.algorithm = "slowmo"``."""

    momentum: float = 0.5
    """Slow momentum, beta in the paper."""
    rate: float = 1.0
    """Slow learning rate, alpha in the paper."""

    def __post_init__(self) -> None:
        require(0 <= self.momentum < 1, f"momentum must be in [0, 1), got {self.momentum}")
        require(0 < self.rate <= 2, f"rate must be in (0, 2], got {self.rate}")


class SlowMo(BlockFiltered):
    """Moves towards slow weights, which take steps with momentum along what the mean has moved."""

    Options: ClassVar[type] = SlowMoOptions
    in_teams = False  # every trainer's learning-rate factor must be in the all-reduce
    sends_factor = True

    def __init__(self, options: RoundOptions, exchange: Exchange) -> None:
        super().__init__(options, exchange)
        self._own = options.own(SlowMoOptions)

    def merge_target(self, reduced: np.ndarray) -> np.ndarray:
        """Step the slow weights by the mean of the snapshots; gamma is the last word."""
        own, slow, u, gamma = self._own, self._global, self._delta, reduced[-1]
        u *= own.momentum
        u += (slow - reduced[:-1]) / gamma
        slow -= own.rate * gamma * u
        return slow
