"""How vectors meet: what all exchanges have in common. A round takes a snapshot of the replica, gets what the others
have, and moves the live weights towards what the algorithm makes of it. ``exchanges`` chooses one.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from functools import partial

import numpy as np

from ssmpi.runtime.compiled.jit import njit
from ssmpi.runtime.mpi.shared_memory import placed
from ssmpi.sync.in_place import Replicas
from ssmpi.sync.options import RoundOptions
from ssmpi.sync.round_context import RoundContext
from ssmpi.sync.shards import cut

MEASURE_SECONDS = 2.0  # how often a round also measures how far the replica is from its reference

Refer = Callable[[np.ndarray, int], np.ndarray]  # the reference to move towards, from what a fragment's exchange gave
FusedMove = Callable[[Replicas, np.ndarray, slice], None]  # moves a part of replicas, of which some count


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


def divergence(reference: np.ndarray, snapshot: np.ndarray) -> float:
    """How far a replica is from its reference, relative to the reference's length."""
    return float(np.linalg.norm(reference - snapshot)) / max(float(np.linalg.norm(reference)), 1e-30)


class Exchange(ABC):
    """One trainer's end. ``weights`` is the live replica, float32 (parameters,); a round exchanges one of
    ``fragments``.

    ``leads`` is False if another trainer of this host runs the rounds of this one; ``members`` is the number of
    trainers whose rounds this one runs, ``thread`` the worker thread whose rounds it runs, 0 for all of them.
    """

    leads, members, thread = True, 1, 0

    def __init__(self, options: RoundOptions, weights: np.ndarray, context: RoundContext) -> None:
        self.options, self.weights, self.context = options, weights, context
        self.snapshot, self.fragments = np.empty_like(weights), cut(weights.size, options.fragments)
        self.alpha: float = options.alpha
        self.rounds, self._round_seconds, self._staleness = 0, 0.0, 0.0
        self._divergence, self._measure_at = math.nan, 0.0
        self._merge = merge_difference if options.merge == "difference" else merge_interpolate
        nothing = np.empty(0, np.float32)
        self._merge(nothing, nothing, nothing, 0.0)  # compiles now, not in the first round

    # A round

    def round(self, fragment: int, active: bool, refer: Refer) -> bool:
        """Exchange a fragment and merge; with ``active`` False this trainer follows with weight 0. False if no trainer
        was active any more.
        """
        part = self.fragments[fragment]
        snapshot, weights = self.snapshot[part], self.weights[part]
        np.copyto(snapshot, weights)
        found = self.reference(snapshot, fragment, active)
        if found is None:
            return False
        self.merge(weights, refer(found, fragment), snapshot)
        return True

    def round_of_all(self, fragment: int, refer: Refer) -> None:
        """A round in which all replicas count, also those of trainers that have ended. Every trainer calls it."""
        self.round(fragment, True, refer)

    @abstractmethod
    def reference(self, snapshot: np.ndarray, fragment: int, active: bool) -> np.ndarray | None:
        """What the others have of a fragment, in exchange for this trainer's ``snapshot``; valid until the next call.
        None if no trainer was active any more.
        """

    def merge(self, weights: np.ndarray, reference: np.ndarray, snapshot: np.ndarray) -> None:
        """Move live weights towards the reference; now and then record their relative distance from it."""
        if self.begin_measuring():
            self._divergence = divergence(reference, snapshot)
        if self.context.merge_later:
            late = partial(self._merge, weights, reference.copy(), snapshot.copy(), self.alpha)
            self.context.merge_later(late)
        else:
            self._merge(weights, reference, snapshot, self.alpha)

    def begin_measuring(self) -> bool:
        """Begin the next interval between two measurements of the divergence; False if this one is not over."""
        if time.monotonic() < self._measure_at:
            return False
        self._measure_at = time.monotonic() + MEASURE_SECONDS
        return True

    def fuse(self, move: FusedMove) -> None:
        """``move`` does in one pass what the algorithm's ``refer`` and a merge do, for replicas in one memory."""
        return

    # Counts

    def count(self, seconds: float, staleness: float) -> None:
        """One more round, of so many seconds, and iterations of this replica in it."""
        self.rounds += 1
        self._round_seconds += seconds
        self._staleness += staleness

    @property
    def tally(self) -> tuple[float, float, float, float]:
        """Rounds so far, their seconds, staleness and the last divergence; for a team the leader counts them."""
        return self.rounds, self._round_seconds, self._staleness, self._divergence

    # A part of the run

    @property
    def needed(self) -> bool:
        """Whether others still need rounds of this trainer although it has no more data."""
        return False

    def begin(self) -> None:
        """A part of the run begins."""
        return

    def end(self) -> None:
        """This trainer has no more data in this part."""
        return

    def leave(self, follow: Callable[[], bool]) -> bool:
        """Take part by ``follow``, a round with weight 0, until no trainer trains; False if the leader does so."""
        return True

    def conclude(self) -> None:
        """The last round of this part is done."""
        return

    def renew(self) -> None:
        """Make the next exchange of each fragment dense, whatever the codec."""
        return

    # What is kept, and lost

    def array(self, name: str, values: np.ndarray) -> np.ndarray:
        """An array that is equal on every trainer: a copy of ``values``, or as an earlier process left it. Trainers
        that one of them runs rounds for share it. Every trainer calls it.
        """
        return placed(self.context.local.memory.part(f"{name} model", shared=False), values)

    @property
    def keeper(self) -> int:
        """The replica whose trainer's memory holds what ``array`` gave."""
        return self.context.replicas.rank

    @abstractmethod
    def model(self) -> np.ndarray:
        """What replicas share, float32 (parameters,): their mean, or the center. Every trainer calls it at rest."""

    def state(self) -> dict[str, np.ndarray]:
        """What a checkpoint must hold of the other side and of what is on its way: arrays by name."""
        return {}

    def resume(self, saved: Mapping[str, np.ndarray]) -> None:
        """Restore ``state``."""
        return

    def restart(self) -> None:
        """All trainers have equal weights after their warm-up: the other side starts from these."""
        return

    def recenter(self, servers: Collection[int], center: np.ndarray, saved: Mapping[str, np.ndarray]) -> None:
        """Some sync PSs have lost their memory: their shards start from ``center``, float32 (parameters,), equal on
        every trainer. The first trainer passes what was ``saved`` of ``state``. Every trainer calls it.
        """
        return

    def join(self) -> None:
        """This trainer has lost its memory and its replica is the mean of the others: start from the common model."""
        return

    def goodbye(self) -> None:
        """Tell the servers, if there are any, that this trainer sends no more requests."""
        return
