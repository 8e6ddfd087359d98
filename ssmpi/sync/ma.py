"""Model averaging, S-MA and FR-MA (ShadowSync, arXiv 2003.03477)::

    u   = (1/n) sum_i w_i          over a snapshot of every trainer's replica
    w_i = w_i + alpha (u - snapshot_i)      Local SGD: alpha = 1, fixed_rate; the default of 0.5 takes half of that step

A trainer that is out of data takes part with weight 0, so n is those that still train. When it reaches 0, all of them
leave in the same round. The mean comes by all-reduce; at pace ``shadow`` one trainer of a host takes it for all that
share memory there (``host_team``), and hosts meet in an all-reduce.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from ssmpi.runtime.mpi.waiting import WaitOptions, wait
from ssmpi.runtime.traffic import Link
from ssmpi.sync.base import Exchange, FusedUpdate, MergeTarget, RoundCost, Synchronizer, divergence
from ssmpi.sync.host_team import HostTeam, Replicas, average, make_team
from ssmpi.sync.options import RoundOptions
from ssmpi.sync.round_context import RoundContext

if TYPE_CHECKING:
    from ssmpi.runtime.mpi.messages import Conversation
    from ssmpi.runtime.topology import Topology


@dataclass(frozen=True)
class MAOptions:
    """``[sync.ma]`` has no settings of its own."""


class MA(Synchronizer):
    """Moves towards the mean of the trainers that still train."""

    Options: ClassVar[type] = MAOptions
    in_teams = True

    def __init__(self, options: RoundOptions, exchange: Exchange) -> None:
        super().__init__(options, exchange)
        self.idle = self.context.replicas.size == 1  # one trainer alone is its own mean

    @classmethod
    def make_exchange(
        cls, options: RoundOptions, weights: np.ndarray, context: RoundContext, thread: int = 0
    ) -> Exchange:
        """In shared memory where trainers share a host."""
        if cls.in_teams and options.pace == "shadow" and context.replicas.size > 1:
            replica = context.local.replica
            if team := make_team(context.replicas, weights, replica.host, replica.memory):
                return SharedMemoryMean(options, weights, context, team)
        return AllReduceMean(options, weights, context, context.local.factor if cls.sends_factor else None)

    @classmethod
    def cost(cls, options: RoundOptions, topology: Topology, parameters: int) -> RoundCost:
        """An all-reduce of the vector with its weight, among hosts if one trainer averages those of its host."""
        words = parameters + 1 + cls.sends_factor
        return RoundCost({Link.TRAINERS: reduced_bytes(4 * words, topology.replicas)})


def reduced_bytes(size: int, ranks: int) -> float:
    """The bytes that each of ``ranks`` ranks sends for a ring all-reduce of ``size`` bytes."""
    return 2 * (ranks - 1) * size / ranks


class Average:
    """Weighted means of vectors of at most ``size`` floats by one nonblocking all-reduce. The sum of the weights
    travels in the same buffer.
    """

    def __init__(self, trainers: Conversation, waiting: WaitOptions, size: int) -> None:
        self._trainers, self._waiting = trainers, waiting
        self._buffer = np.empty(size + 1, np.float32)

    def of(self, vector: np.ndarray, weight: float = 1.0) -> np.ndarray | None:
        """Mean of ``vector``, None if every trainer has weight 0. All trainers must call; valid until the next call."""
        total = self.space(vector.size)
        if weight:
            np.multiply(vector, np.float32(weight), out=total)
        else:
            total[:] = 0.0
        return self.of_sums(total.size, weight)

    def space(self, size: int) -> np.ndarray:
        """Space for a weighted sum of ``size`` floats, to be filled before ``of_sums``."""
        return self._buffer[:size]

    def of_sums(self, size: int, weight: float) -> np.ndarray | None:
        """As ``of``; ``space(size)`` holds the sum of the vectors that this rank represents, with their total
        ``weight``.
        """
        buffer = self._buffer[: size + 1]
        buffer[-1] = weight
        if self._trainers.size > 1:
            wait(self._trainers.iallreduce(buffer), self._waiting, "the other trainers' round")
        total = buffer[-1]
        if total == 0:
            return None
        buffer[:-1] /= total
        return buffer[:-1]


class AllReduceMean(Exchange):
    """The mean by all-reduce. A mean of ``beside``, which each trainer calls, travels as its last word, if it is
    given.
    """

    def __init__(
        self,
        options: RoundOptions,
        weights: np.ndarray,
        context: RoundContext,
        beside: Callable[[], float] | None = None,
    ) -> None:
        super().__init__(options, weights, context)
        self._beside, self._mine = beside, np.empty(weights.size + 1 if beside else 0, np.float32)
        self._average = Average(context.replicas, context.waiting, weights.size + bool(beside))

    def reference(self, snapshot: np.ndarray, active: bool) -> np.ndarray | None:
        """The mean of the snapshots of trainers that are active."""
        if not self._beside:
            return self._average.of(snapshot, active)
        self._mine[:-1], self._mine[-1] = snapshot, self._beside()
        return self._average.of(self._mine, active)

    def drain_peers(self, follow: Callable[[], bool]) -> bool:
        """Until a round finds no trainer active: all leave in the same one."""
        while follow():
            pass
        return True

    def model(self) -> np.ndarray:
        """The mean of all replicas."""
        mean = self._average.of(self.weights)
        assert mean is not None
        return mean.copy()


class SharedMemoryMean(AllReduceMean):
    """The leader of a ``team`` exchanges for all its members that still train; leaders meet in an all-reduce."""

    def __init__(self, options: RoundOptions, weights: np.ndarray, context: RoundContext, team: HostTeam) -> None:
        super().__init__(options, weights, context)
        self.team, self.leads, self.members = team, team.leads, team.size
        self._of_leaders = Average(team.leaders, context.waiting, weights.size)
        self._all_ended = False  # on all hosts; every leader sees it in the same round
        self.update_in_place: FusedUpdate = self._average_in_place

    @property
    def needed(self) -> bool:
        """Whether any member still trains."""
        return self.team.training

    def set_fused_update(self, update: FusedUpdate) -> None:
        """For rounds of a job that is all on this host."""
        self.update_in_place = update
        update(self.team.in_place, self.team.active, 0)  # compiles now, not in the first round

    def round(self, active: bool, merge_target: MergeTarget) -> bool:
        """As the base class; members that are led do nothing."""
        return self.leads and self._round(merge_target, everyone=False)

    def round_of_all(self, merge_target: MergeTarget) -> None:
        """As the base class."""
        self._round(merge_target, everyone=True)

    def count(self, seconds: float, staleness: float) -> None:
        """On the board, for all members."""
        super().count(seconds, staleness)
        self.team.count(self.rounds, self._round_seconds, self._staleness)

    @property
    def tally(self) -> tuple[float, float, float, float]:
        """As the leader counts."""
        return self.team.tally

    def begin(self) -> None:
        """This member begins."""
        self._all_ended = False
        self.team.begin()

    def end(self) -> None:
        """This member ends."""
        self.team.end()

    def drain_peers(self, follow: Callable[[], bool]) -> bool:
        """As the base class, unless an earlier round found that all have ended; members wait for their leader."""
        if not self.leads:
            self.team.wait_for_leader()
            return False
        while not self._all_ended and follow():
            pass
        return True

    def finish_segment(self) -> None:
        """Members may go on."""
        self.team.close()

    def array(self, name: str, values: np.ndarray) -> np.ndarray:
        """The leader's, mapped by its team."""
        memory = self.context.local.memory.part(f"{name} model", shared=self.members > 1)
        return self.team.share(memory, values)

    @property
    def owner_of_state(self) -> int:
        """The leader's."""
        return self.team.leader

    def _round(self, merge_target: MergeTarget, *, everyone: bool) -> bool:
        team, size = self.team, self.weights.size
        team.wait_for_members(self.context.waiting)
        active, measures = team.active, self.begin_measuring()
        if team.alone and active.any() and not (everyone or measures):
            self.update_in_place(team.in_place, active, size)
            return True
        mean = self._of_leaders.of_sums(size, team.snapshot(self._of_leaders.space(size), everyone=everyone))
        if mean is None:
            self._all_ended = True
            return False
        reference = merge_target(mean)
        for member, (weights, snapshot) in enumerate(team.pairs):
            if measures:
                team.note_divergence(member, divergence(reference, snapshot))
            self.merge(weights, reference, snapshot)
        return True

    def _average_in_place(self, replicas: Replicas, active: np.ndarray, size: int) -> None:
        average(replicas.addresses, active, size, replicas.blocks, self.alpha)
