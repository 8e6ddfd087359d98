"""What every synchronization algorithm has in common: a round takes a snapshot of the replica, gets a reference from
the others, and moves the live weights towards it. When rounds run is somebody else's (``pace``).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numba import njit

from ssmpi.comm.waiting import Patience

if TYPE_CHECKING:
    from ssmpi.comm.messages import Conversation

Merge = Literal["difference", "interpolate"]


@dataclass
class Peers:
    """Whom a synchronizer talks to: the trainers, and the sync PSs from rank ``first_ps`` of ``center`` on."""

    trainers: Conversation
    center: Conversation
    patience: Patience

    @property
    def first_ps(self) -> int:
        """Rank of sync PS 0 in ``center``."""
        return self.trainers.size


@njit(cache=True, nogil=True)
def merge_difference(weights: np.ndarray, reference: np.ndarray, snapshot: np.ndarray, alpha: float) -> None:
    """weights += alpha (reference - snapshot): what workers learned since the snapshot survives (Bagua, hivemind)."""
    a = np.float32(alpha)
    for i in range(weights.shape[0]):
        weights[i] += a * (reference[i] - snapshot[i])


@njit(cache=True, nogil=True)
def merge_interpolate(weights: np.ndarray, reference: np.ndarray, snapshot: np.ndarray, alpha: float) -> None:
    """weights = (1 - alpha) weights + alpha reference: the paper's form; loses alpha of what was learned meanwhile."""
    a = np.float32(alpha)
    for i in range(weights.shape[0]):
        weights[i] = (np.float32(1.0) - a) * weights[i] + a * reference[i]


class Synchronizer(ABC):
    """One algorithm on one trainer. ``weights`` is the live flat replica, float32 (parameters,).

    Every trainer calls ``round`` while it trains, then ``close`` once; ``model`` is then the same on all of them.
    """

    def __init__(self, options: Any, weights: np.ndarray, peers: Peers) -> None:
        self.options, self.weights, self.peers = options, weights, peers
        self.snapshot = np.empty_like(weights)
        self.rounds = 0
        self._merge = merge_difference if options.merge == "difference" else merge_interpolate
        nothing = np.empty(0, np.float32)
        self._merge(nothing, nothing, nothing, 0.0)  # compiles now, not in the first round

    def round(self) -> None:
        """Exchange once with the others and move the live weights by what came back."""
        self.step()
        self.rounds += 1

    def step(self, active: bool = True) -> bool:
        """One exchange and merge; ``active`` False follows without weight. False when nobody was active any more."""
        np.copyto(self.snapshot, self.weights)
        reference = self.exchange(self.snapshot, active)
        if reference is None:
            return False
        self._merge(self.weights, reference, self.snapshot, self.options.alpha)
        return True

    @property
    def idle(self) -> bool:
        """Whether rounds would change nothing, so that none need run."""
        return False

    @abstractmethod
    def exchange(self, snapshot: np.ndarray, active: bool) -> np.ndarray | None:
        """Take part in one exchange; the reference to move towards, None when no trainer was active any more."""

    @abstractmethod
    def close(self) -> None:
        """This trainer has no more data in this part of the run: answer the others until they have none either."""

    @abstractmethod
    def model(self) -> np.ndarray:
        """The weights that are evaluated and saved (parameters,), the same on every trainer. Call after ``close``."""

    def state(self) -> dict[str, np.ndarray]:
        """What a checkpoint must hold of the algorithm besides the replica and ``model()``: live arrays by name.

        A resumed run constructs the algorithm on the saved model, then fills these arrays.
        """
        return {}

    def goodbye(self) -> None:
        """Take leave of servers, where the algorithm has any."""
        return
