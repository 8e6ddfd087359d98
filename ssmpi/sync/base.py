"""The base of synchronization algorithms. A ``Synchronizer`` defines the arithmetic of a round, its ``Exchange`` moves
the vectors, and ``pace`` decides when rounds run. A round takes a snapshot of the replica, exchanges it with the
others, and moves the live weights towards the result.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from ssmpi.runtime.compiled.jit import njit
from ssmpi.runtime.errors import SettingsError
from ssmpi.runtime.mpi.shared_memory import placed
from ssmpi.runtime.protocols import DenseStep, PushRows
from ssmpi.runtime.topology import Role
from ssmpi.runtime.traffic import Link
from ssmpi.sync.options import RoundOptions
from ssmpi.sync.round_context import RoundContext

if TYPE_CHECKING:
    from ssmpi.runtime.topology import Topology
    from ssmpi.sync.host_team import Replicas

SYNC_PS, ALL_TRAINERS, ANOTHER_TRAINER = "the sync PSs", "all trainers", "another trainer"
MEASURE_SECONDS = 2.0  # how often a round also measures how far the replica is from its reference

MergeTarget = Callable[[np.ndarray], np.ndarray]  # the reference to move towards, from what an exchange gave
FusedUpdate = Callable[["Replicas", np.ndarray, int], None]  # moves so many floats of replicas, of which some count


@dataclass(frozen=True)
class RoundCost:
    """What a trainer's round costs.

    ``sent`` are payload bytes by class of link, as ``Traffic`` counts them; ``codec_seconds`` what a codec takes of the
    processors at both ends, in sequence. In arrays as long as the vector: ``kept`` by a trainer in memory that outlives
    a kill; ``mirrors`` on a rank of each role, on sync PSs all together.
    """

    sent: Mapping[Link, float] = field(default_factory=dict)
    codec_seconds: float = 0.0
    kept: int = 0
    mirrors: Mapping[Role, int] = field(default_factory=dict)


@njit(cache=True, nogil=True)
def merge_difference(weights: np.ndarray, reference: np.ndarray, snapshot: np.ndarray, alpha: float) -> None:
    """weights += alpha (reference - snapshot): what workers learned since the snapshot survives (Bagua, hivemind)."""
    a = np.float32(alpha)
    for i in range(weights.shape[0]):
        weights[i] += a * (reference[i] - snapshot[i])


def divergence(reference: np.ndarray, snapshot: np.ndarray) -> float:
    """How far a replica is from its reference, relative to the reference's length."""
    return float(np.linalg.norm(reference - snapshot)) / max(float(np.linalg.norm(reference)), 1e-30)


class Exchange(ABC):
    """One trainer's end of how vectors meet. ``weights`` is the live replica, float32 (parameters,).

    ``leads`` is False if another trainer of this host runs the rounds of this one; ``members`` is the number of
    trainers whose rounds this one runs, ``thread`` the worker thread whose rounds it runs, 0 for all of them.
    """

    leads, members, thread = True, 1, 0

    def __init__(self, options: RoundOptions, weights: np.ndarray, context: RoundContext) -> None:
        self.options, self.weights, self.context = options, weights, context
        self.snapshot = np.empty_like(weights)
        self.alpha: float = options.alpha
        self.rounds, self._round_seconds, self._staleness = 0, 0.0, 0.0
        self._divergence, self._measure_at = math.nan, 0.0
        nothing = np.empty(0, np.float32)
        merge_difference(nothing, nothing, nothing, 0.0)  # compiles now, not in the first round

    # A round

    def round(self, active: bool, merge_target: MergeTarget) -> bool:
        """Exchange and merge; with ``active`` False this trainer follows with weight 0. False if no trainer was active
        any more.
        """
        np.copyto(self.snapshot, self.weights)
        reduced = self.reference(self.snapshot, active)
        if reduced is None:
            return False
        self.merge(self.weights, merge_target(reduced), self.snapshot)
        return True

    def round_of_all(self, merge_target: MergeTarget) -> None:
        """A round in which all replicas count, also those of trainers that have ended. Every trainer calls it."""
        self.round(True, merge_target)

    @abstractmethod
    def reference(self, snapshot: np.ndarray, active: bool) -> np.ndarray | None:
        """What the others have, in exchange for this trainer's ``snapshot``; valid until the next call. None if no
        trainer was active any more.
        """

    def merge(self, weights: np.ndarray, reference: np.ndarray, snapshot: np.ndarray) -> None:
        """Move live weights towards the reference; now and then record their relative distance from it."""
        if self.begin_measuring():
            self._divergence = divergence(reference, snapshot)
        merge_difference(weights, reference, snapshot, self.alpha)

    def begin_measuring(self) -> bool:
        """Begin the next interval between two measurements of the divergence; False if this one is not over."""
        if time.monotonic() < self._measure_at:
            return False
        self._measure_at = time.monotonic() + MEASURE_SECONDS
        return True

    def set_fused_update(self, update: FusedUpdate) -> None:
        """``update`` does in one pass what the algorithm's ``merge_target`` and a merge do, for replicas in one
        memory.
        """
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

    # A segment of the run

    @property
    def needed(self) -> bool:
        """Whether others still need rounds of this trainer although it has no more data."""
        return False

    def begin(self) -> None:
        """A segment of the run begins."""
        return

    def end(self) -> None:
        """This trainer has no more data in this segment."""
        return

    def drain_peers(self, follow: Callable[[], bool]) -> bool:
        """Take part by ``follow``, a round with weight 0, until no trainer trains; False if the leader does so."""
        return True

    def finish_segment(self) -> None:
        """The last round of this segment is done."""
        return

    # What is kept, and lost

    def array(self, name: str, values: np.ndarray) -> np.ndarray:
        """An array that is equal on every trainer: a copy of ``values``, or as an earlier process left it. Trainers
        that one of them runs rounds for share it. Every trainer calls it.
        """
        return placed(self.context.local.memory.part(f"{name} model", shared=False), values)

    @property
    def owner_of_state(self) -> int:
        """The replica whose trainer's memory holds what ``array`` gave."""
        return self.context.replicas.rank

    @abstractmethod
    def model(self) -> np.ndarray:
        """What replicas share, float32 (parameters,): their mean, or the center. Every trainer calls it while no round
        runs.
        """

    def state(self) -> dict[str, np.ndarray]:
        """What a checkpoint must hold of the other side and of what is on its way: arrays by name."""
        return {}

    def resume(self, saved: Mapping[str, np.ndarray]) -> None:
        """Restore ``state``."""
        return

    def restore_center(self, servers: Collection[int], center: np.ndarray, saved: Mapping[str, np.ndarray]) -> None:
        """Some sync PSs have lost their memory: their shards start from ``center``, float32 (parameters,), equal on
        every trainer. The first trainer passes what was ``saved`` of ``state``. Every trainer calls it.
        """
        return

    def adopt_model(self) -> None:
        """This trainer has lost its memory and its replica is the mean of the others: start from the common model."""
        return

    def goodbye(self) -> None:
        """Tell the servers, if there are any, that this trainer sends no more requests."""
        return


class Synchronizer(ABC):
    """One algorithm on one trainer, or on one of its worker threads.

    Every trainer calls ``round`` while it trains, then ``close`` once; ``model`` is then the same on all of them.
    """

    Options: ClassVar[type]
    partner: ClassVar[str] = ALL_TRAINERS  # the other side of a round; empty: nobody
    in_teams: ClassVar[bool] = False  # one trainer may run the rounds of all trainers of its host
    sends_factor = False  # the mean is also taken of the trainers' learning-rate factors
    no_codec: ClassVar[str] = "exchanges weights, and a codec leaves out most of what it is given"  # empty: takes one
    steps_elsewhere = False  # sync PSs step their shards of the weights by pushed sums of gradients
    in_the_step = False  # runs inside the optimizer's step, so that a pace has no rounds to run

    def __init_subclass__(cls) -> None:
        """Shared memory and codecs move replicas towards what an exchange gives. An algorithm that overrides
        ``merge_target`` moves them elsewhere: it uses neither, unless its class says that it may.
        """
        if "refer" in vars(cls):
            raise SettingsError(
                f"{cls.__name__}.refer(found, fragment) is called merge_target(reduced) now, and gets the whole vector"
            )
        if "merge_target" in vars(cls):
            cls.in_teams = vars(cls).get("in_teams", False)
            cls.no_codec = vars(cls).get("no_codec", cls.no_codec or Synchronizer.no_codec)

    def __init__(self, options: RoundOptions, exchange: Exchange) -> None:
        self.options, self.exchange, self.context = options, exchange, exchange.context
        self.weights = exchange.weights
        self.push_rows: PushRows | None = None  # of worker threads, in place of that of the tables
        self.idle = False  # rounds would change nothing, so that none need to run

    @classmethod
    @abstractmethod
    def make_exchange(
        cls, options: RoundOptions, weights: np.ndarray, context: RoundContext, thread: int = 0
    ) -> Exchange:
        """A trainer's end of its rounds, or that of one of its threads. Every trainer calls it."""

    @classmethod
    def option_error(cls, options: RoundOptions) -> str:
        """Why these ``[sync]`` settings are invalid for this algorithm, and a remedy; empty if they are valid."""
        return ""

    @classmethod
    def topology_error(cls, topology: Topology) -> str:
        """Why this algorithm cannot run on this topology and what to set; empty if it can."""
        if cls.partner != SYNC_PS or topology.sync_ps:
            return ""
        return "keeps its center on sync PSs: set topology.sync_ps = 1 or more"

    @classmethod
    def cost(cls, options: RoundOptions, topology: Topology, parameters: int) -> RoundCost:
        """What rounds of a vector of ``parameters`` cost with these settings."""
        return RoundCost()

    def round(self, active: bool = True) -> bool:
        """Exchange with the others and merge the result into the live weights; with ``active`` False follow them with
        weight 0. False if no trainer was active any more.
        """
        local = self.context.local
        began, done = time.monotonic(), local.steps
        moved = self.exchange.round(active, self.merge_target)
        if moved and active:
            self.exchange.count(time.monotonic() - began, float(local.steps - done))
        return moved

    def merge_target(self, reduced: np.ndarray) -> np.ndarray:
        """The reference that replicas move towards, from what the exchange gave; here the same."""
        return reduced

    def close(self) -> None:
        """This trainer has no more data in this segment of the run: keep taking part until no trainer has."""
        self.exchange.end()
        if self.exchange.drain_peers(lambda: self.round(active=False)):
            self.last_rounds()
            self.exchange.finish_segment()

    def model(self) -> np.ndarray:
        """The weights that are evaluated and saved (parameters,), the same on every trainer. Call after ``close``."""
        return self.exchange.model()

    def state(self) -> dict[str, np.ndarray]:
        """What a checkpoint must hold of the algorithm besides the replica and ``model()``: arrays by name."""
        return self.exchange.state()

    def resume(self, saved: Mapping[str, np.ndarray]) -> None:
        """Restore ``state`` on an algorithm that was constructed with the saved model. This may move the replica to
        where a new replica would start.
        """
        self.exchange.resume(saved)

    def common(self) -> list[np.ndarray]:
        """Live arrays that are equal on every trainer between two rounds, with the same sizes in the same order."""
        return []

    def restart(self) -> None:
        """What ``common`` gives was lost: it starts again from ``weights``, which are equal on all trainers now."""
        return

    def optimizer(self, thread: int) -> DenseStep:
        """The optimizer that a worker thread calls ``step(model, factor)`` on: the trainer's, unless the algorithm
        wraps it.
        """
        return self.context.local.optimizer

    def last_rounds(self) -> None:
        """Rounds after the last one of a segment, once no trainer trains any more."""
        return
