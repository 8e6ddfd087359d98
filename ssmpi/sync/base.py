"""What every synchronization algorithm has in common: a round takes a snapshot of the replica, gets a reference from
the others, and moves the live weights towards it. When rounds run is somebody else's (``pace``).
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
from ssmpi.core.traffic import Link
from ssmpi.sync.options import RoundOptions
from ssmpi.sync.parts import cut
from ssmpi.sync.peers import Peers

if TYPE_CHECKING:
    from ssmpi.core.topology import Role, Topology

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
    partner: ClassVar[str] = ALL_TRAINERS  # whom a round is with: these, SYNC_PS, another trainer or nobody
    each_thread = False  # worker threads may run rounds of their own, through one synchronizer each
    in_groups = False  # one trainer may run the rounds of all trainers of its host
    no_codec: ClassVar[str] = "exchanges weights, and a codec leaves out most of what it is given"  # empty: takes one
    in_the_step = False  # belongs into the optimizer's step, so that no rounds are left for a pace

    def __init__(self, options: RoundOptions, weights: np.ndarray, peers: Peers) -> None:
        self.options, self.weights, self.peers, self.group = options, weights, peers, peers.group
        self.counted = peers.local.iterations  # whose iterations lie between two rounds
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
    def kept_vectors(cls, options: RoundOptions, threads: int) -> int:
        """How many arrays as long as ``weights`` a trainer of so many threads keeps in memory that outlives a kill."""
        return 0

    @classmethod
    def mirror_vectors(cls, options: RoundOptions, topology: Topology) -> dict[Role, int]:
        """How many arrays as long as ``weights`` mirrors take on a rank of each role; on sync PSs all together."""
        return {}

    @classmethod
    def option_error(cls, options: RoundOptions) -> str:
        """Why these ``[sync]`` settings make no sense for this algorithm and what would; empty if they do."""
        return ""

    @classmethod
    def codec_error(cls, options: RoundOptions) -> str:
        """Why this algorithm cannot have a codec, or not that of these settings; empty if it can."""
        return cls.no_codec

    @classmethod
    def topology_error(cls, topology: Topology) -> str:
        """Why this algorithm cannot run on this topology and what to set; empty if it can."""
        return ""

    @classmethod
    def round_bytes(cls, options: RoundOptions, topology: Topology, parameters: int) -> dict[Link, float]:
        """Payload bytes of one trainer's round over the whole vector, by class of link: what is printed is counted."""
        return {}

    @classmethod
    def codec_seconds(cls, options: RoundOptions, topology: Topology, parameters: int) -> float:
        """What a codec takes of the processors at both ends of such a round, one after the other; 0 without one."""
        return 0.0

    def round(self) -> None:
        """Exchange once with the others and move the live weights by what came back."""
        began, done = time.monotonic(), self.peers.local.iterations.sum()
        if self.step():
            self.rounds += 1
            self.round_seconds += time.monotonic() - began
            self.staleness += float(self.peers.local.iterations.sum() - done)
            if self.group:
                self.group.count(self.rounds, self.round_seconds, self.staleness)

    def step(self, active: bool = True) -> bool:
        """One exchange and merge; ``active`` False follows without weight. False when nobody was active any more."""
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
        """Move live weights towards the reference; now and then note how far from it they were, relative to its
        size.
        """
        if self.measures_now():
            self.divergence = divergence(reference, snapshot)
        self._merge(weights, reference, snapshot, self.alpha)

    def measures_now(self) -> bool:
        """Whether it is time to measure the divergence, and if so until the next time not any more."""
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
        """Iterations done so far by the worker threads whose rounds these are."""
        return int(self.counted.sum())

    @property
    def idle(self) -> bool:
        """Whether rounds would change nothing, so that none need run."""
        return False

    def begin(self) -> None:
        """A part of the run begins. Not all rounds need it: those of a group of trainers do."""
        if self.group:
            self.group.begin()

    def end(self) -> None:
        """This trainer has no more data in this part, which ``close`` will end."""
        if self.group:
            self.group.end()

    @property
    def led(self) -> bool:
        """Whether another trainer of this host runs the rounds of this one."""
        return bool(self.group and not self.group.leads)

    @property
    def needed(self) -> bool:
        """Whether trainers of this host need rounds of this one although it has ended."""
        return bool(self.group and self.group.training)

    @abstractmethod
    def exchange(self, snapshot: np.ndarray, fragment: int, active: bool) -> np.ndarray | None:
        """Take part in one exchange of ``fragments[fragment]``, of which ``snapshot`` is this trainer's.

        Returns the reference to move towards, None when no trainer was active any more.
        """

    @abstractmethod
    def close(self) -> None:
        """This trainer has no more data in this part of the run: answer the others until they have none either."""

    @abstractmethod
    def model(self) -> np.ndarray:
        """The weights that are evaluated and saved (parameters,), the same on every trainer. Call after ``close``."""

    def state(self) -> dict[str, np.ndarray]:
        """What a checkpoint must hold of the algorithm besides the replica and ``model()``: live arrays by name."""
        return {}

    def resume(self, saved: Mapping[str, np.ndarray]) -> None:
        """Go on with what ``state`` was, on an algorithm that was constructed on the saved model.

        The replica, which is there too, may move: to where one without a past of its own begins.
        """
        for name, values in self.state().items():
            values[:] = saved[name]

    def common(self) -> list[np.ndarray]:
        """Live arrays that are the same on every trainer between two rounds, of the same sizes in the same order."""
        return []

    def optimizer(self, thread: int) -> DenseStep:
        """What a worker thread calls ``step(model, factor)`` of: the trainer's own, unless the algorithm has a say in
        it.
        """
        return self.peers.local.optimizer

    def transport(self) -> RowTransport | None:
        """The way of a worker thread to the embedding rows: the trainer's own, unless the algorithm has a say in it."""
        return self.peers.local.rows.transport

    def restart(self) -> None:
        """All trainers have equal weights, of their warm-up: begin from there instead of the initial ones."""
        return

    def recenter(self, servers: Collection[int], center: np.ndarray, saved: Mapping[str, np.ndarray]) -> None:
        """The shards of some sync PSs, which have lost their memory, begin at ``center``, float32 (parameters,), the
        same on every trainer. The first one has what was ``saved`` of ``state``. Every trainer calls.
        """
        return

    def join(self) -> None:
        """This trainer has lost its memory; its replica is the mean of the others: begin from the common model."""
        return

    def goodbye(self) -> None:
        """Take leave of servers, where the algorithm has any."""
        return
