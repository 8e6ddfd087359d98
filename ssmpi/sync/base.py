"""What every synchronization algorithm has in common: a round takes a snapshot of the replica, gets a reference from
the others, and moves the live weights towards it. ``pace`` decides when rounds run.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
from numba import njit

from ssmpi.core.protocols import DenseStep, RowTransport
from ssmpi.sync.cost import RoundCost
from ssmpi.sync.options import RoundOptions
from ssmpi.sync.parts import cut
from ssmpi.sync.round_context import RoundContext

if TYPE_CHECKING:
    from ssmpi.core.topology import Topology

Merge = Literal["difference", "interpolate"]
SYNC_PS, ALL_TRAINERS = "the sync PSs", "all trainers"
MEASURE_SECONDS = 2.0  # how often a round also measures how far the replica is from its reference


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


class Synchronizer(ABC):
    """One algorithm on one trainer. ``weights`` is the live flat replica, float32 (parameters,).

    Every trainer calls ``round`` while it trains, then ``close`` once; ``model`` is then the same on all of them. A
    round exchanges one of ``fragments``, in turn (Streaming DiLoCo, arXiv 2501.18512); with one that is the whole
    vector.
    """

    Options: ClassVar[type]
    partner: ClassVar[str] = ALL_TRAINERS  # the other side of a round: all trainers, SYNC_PS, another trainer or nobody
    each_thread = False  # worker threads may run rounds of their own, through one synchronizer each
    in_groups = False  # one trainer may run the rounds of all trainers of its host
    no_codec: ClassVar[str] = "exchanges weights, and a codec leaves out most of what it is given"  # empty: takes one
    in_the_step = False  # runs inside the optimizer's step, so that a pace has no rounds to run

    def __init__(self, options: RoundOptions, weights: np.ndarray, context: RoundContext) -> None:
        self.options, self.weights, self.context, self.group = options, weights, context, context.group
        self.counted = context.local.iterations  # the iterations that the sync gap counts
        self.snapshot = np.empty_like(weights)
        self.fragments = cut(weights.size, options.fragments)
        self.alpha: float = options.alpha
        self.rounds = self._turn = 0
        self.round_seconds = self.staleness = 0.0
        self.divergence, self._measure_at = math.nan, 0.0
        self._merge = merge_difference if options.merge == "difference" else merge_interpolate
        nothing = np.empty(0, np.float32)
        self._merge(nothing, nothing, nothing, 0.0)  # compiles now, not in the first round

    @classmethod
    def option_error(cls, options: RoundOptions) -> str:
        """Why these ``[sync]`` settings are invalid for this algorithm, and a remedy; empty if they are valid."""
        return ""

    @classmethod
    def codec_error(cls, options: RoundOptions) -> str:
        """Why this algorithm does not support a codec, or not with these settings; empty if it does."""
        return cls.no_codec

    @classmethod
    def topology_error(cls, topology: Topology) -> str:
        """Why this algorithm cannot run on this topology and what to set; empty if it can."""
        return ""

    @classmethod
    def cost(cls, options: RoundOptions, topology: Topology, parameters: int) -> RoundCost:
        """What rounds of a vector of ``parameters`` cost with these settings."""
        return RoundCost()

    def round(self) -> None:
        """Exchange once with the others and merge the result into the live weights."""
        began, done = time.monotonic(), self.context.local.iterations.sum()
        if self.step():
            self.rounds += 1
            self.round_seconds += time.monotonic() - began
            self.staleness += float(self.context.local.iterations.sum() - done)
            if self.group:
                self.group.count(self.rounds, self.round_seconds, self.staleness)

    def step(self, active: bool = True) -> bool:
        """One exchange and merge; with ``active`` False this trainer follows with weight 0. False if no trainer was
        active any more.
        """
        fragment = self.next_fragment()
        part = self.fragments[fragment]
        snapshot, weights = self.snapshot[part], self.weights[part]
        np.copyto(snapshot, weights)
        reference = self.exchange(snapshot, fragment, active)
        if reference is None:
            return False
        self.merge(weights, reference, snapshot)
        return True

    def next_fragment(self) -> int:
        """The fragment whose turn it is."""
        fragment = self._turn % len(self.fragments)
        self._turn += 1
        return fragment

    def merge(self, weights: np.ndarray, reference: np.ndarray, snapshot: np.ndarray) -> None:
        """Move live weights towards the reference; now and then record their relative distance from it."""
        if self.measures_now():
            self.divergence = divergence(reference, snapshot)
        self._merge(weights, reference, snapshot, self.alpha)

    def measures_now(self) -> bool:
        """Whether it is time to measure the divergence; a True restarts the interval."""
        if time.monotonic() < self._measure_at:
            return False
        self._measure_at = time.monotonic() + MEASURE_SECONDS
        return True

    @property
    def tally(self) -> tuple[float, float, float, float]:
        """Rounds so far, their seconds, staleness and the last divergence; for a group the leader counts them."""
        if self.group:
            return self.group.tally
        return self.rounds, self.round_seconds, self.staleness, self.divergence

    @property
    def iterations(self) -> int:
        """Iterations done so far by the worker threads that this synchronizer serves."""
        return int(self.counted.sum())

    @property
    def idle(self) -> bool:
        """Whether rounds would change nothing, so that none need to run."""
        return False

    def begin(self) -> None:
        """A part of the run begins; only rounds of host groups need to know."""
        if self.group:
            self.group.begin()

    def end(self) -> None:
        """This trainer has no more data in this part; ``close`` follows."""
        if self.group:
            self.group.end()

    @property
    def led(self) -> bool:
        """Whether another trainer on this host, the leader, runs the rounds of this one."""
        return bool(self.group and not self.group.leads)

    @property
    def needed(self) -> bool:
        """Whether trainers on this host still need rounds of this one although it has no more data."""
        return bool(self.group and self.group.training)

    @abstractmethod
    def exchange(self, snapshot: np.ndarray, fragment: int, active: bool) -> np.ndarray | None:
        """Take part in one exchange of ``fragments[fragment]`` with this trainer's ``snapshot`` of it. Returns the
        reference to move towards, None if no trainer was active any more.
        """

    @abstractmethod
    def close(self) -> None:
        """This trainer has no more data in this part of the run: keep taking part until no trainer has."""

    @abstractmethod
    def model(self) -> np.ndarray:
        """The weights that are evaluated and saved (parameters,), the same on every trainer. Call after ``close``."""

    def state(self) -> dict[str, np.ndarray]:
        """What a checkpoint must hold of the algorithm besides the replica and ``model()``: live arrays by name."""
        return {}

    def resume(self, saved: Mapping[str, np.ndarray]) -> None:
        """Restore ``state`` on an algorithm that was constructed with the saved model. This may move the replica to
        where a new replica would start.
        """
        for name, values in self.state().items():
            values[:] = saved[name]

    def common(self) -> list[np.ndarray]:
        """Live arrays that are equal on every trainer between two rounds, with the same sizes in the same order."""
        return []

    def optimizer(self, thread: int) -> DenseStep:
        """The optimizer that a worker thread calls ``step(model, factor)`` on: the trainer's, unless the algorithm
        wraps it.
        """
        return self.context.local.optimizer

    def transport(self) -> RowTransport | None:
        """A worker thread's transport for embedding rows: the trainer's, unless the algorithm wraps it."""
        return self.context.local.rows.transport

    def restart(self) -> None:
        """All trainers have equal weights after their warm-up: start from these instead of the initial ones."""
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
