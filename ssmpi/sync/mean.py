"""Exchanges of the mean of all trainers' replicas: by all-reduce; on one host in place, by one trainer for all; or
encoded, by trainers that own a shard of the vector each, those of one host too, so that a codec is seen at work.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ssmpi import compress
from ssmpi.sync.average import Average
from ssmpi.sync.codecs import codec_of
from ssmpi.sync.exchange import Exchange, FusedMove, Refer, divergence
from ssmpi.sync.host_average import HostTeam
from ssmpi.sync.in_place import Replicas, average
from ssmpi.sync.mean_mirrors import MeanMirrors
from ssmpi.sync.options import RoundOptions
from ssmpi.sync.round_context import RoundContext
from ssmpi.sync.sharded_mean import ShardedMean


class ReducedMean(Exchange):
    """By all-reduce. A mean of ``beside``, which each trainer calls, travels as its last word, if it is given."""

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

    def reference(self, snapshot: np.ndarray, fragment: int, active: bool) -> np.ndarray | None:
        """The mean of the snapshots of trainers that are active."""
        if not self._beside:
            return self._average.of(snapshot, active)
        mine = self._mine[: snapshot.size + 1]
        mine[:-1], mine[-1] = snapshot, self._beside()
        return self._average.of(mine, active)

    def leave(self, follow: Callable[[], bool]) -> bool:
        """Until a round finds no trainer active: all leave in the same one."""
        while follow():
            pass
        return True

    def model(self) -> np.ndarray:
        """The mean of all replicas."""
        mean = self._average.of(self.weights)
        assert mean is not None
        return mean.copy()


class HostMean(ReducedMean):
    """The leader of a ``team`` exchanges for all its members that still train; leaders meet in an all-reduce."""

    def __init__(self, options: RoundOptions, weights: np.ndarray, context: RoundContext, team: HostTeam) -> None:
        super().__init__(options, weights, context)
        self.team, self.leads, self.members = team, team.leads, team.size
        self._of_leaders = Average(team.leaders, context.waiting, weights.size)
        self._all_ended = False  # on all hosts; every leader sees it in the same round
        self.move_in_place: FusedMove = self._average_in_place

    @property
    def needed(self) -> bool:
        """Whether any member still trains."""
        return self.team.training

    def fuse(self, move: FusedMove) -> None:
        """For rounds of a job that is all on this host."""
        self.move_in_place = move
        move(self.team.in_place, self.team.active, slice(0, 0))  # compiles now, not in the first round

    def round(self, fragment: int, active: bool, refer: Refer) -> bool:
        """As the base class; members that are led do nothing."""
        return self.leads and self._round(fragment, refer, everyone=False)

    def round_of_all(self, fragment: int, refer: Refer) -> None:
        """As the base class."""
        self._round(fragment, refer, everyone=True)

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

    def leave(self, follow: Callable[[], bool]) -> bool:
        """As the base class, unless an earlier round found that all have ended; members wait for their leader."""
        if not self.leads:
            self.team.wait_for_leader()
            return False
        while not self._all_ended and follow():
            pass
        return True

    def conclude(self) -> None:
        """Members may go on."""
        self.team.close()

    def array(self, name: str, values: np.ndarray) -> np.ndarray:
        """The leader's, mapped by its team."""
        memory = self.context.local.memory.part(f"{name} model", shared=self.members > 1)
        return self.team.share(memory, values)

    @property
    def keeper(self) -> int:
        """The leader's."""
        return self.team.leader

    def _round(self, fragment: int, refer: Refer, *, everyone: bool) -> bool:
        part, team = self.fragments[fragment], self.team
        team.wait_for_members(self.context.waiting)
        active, measures = team.active, self.begin_measuring()
        if team.alone and active.any() and not (everyone or measures):
            self.move_in_place(team.in_place, active, part)
            return True
        total = self._of_leaders.space(part.stop - part.start)
        mean = self._of_leaders.of_sums(total.size, team.snapshot(part, total, everyone=everyone))
        if mean is None:
            self._all_ended = True
            return False
        reference = refer(mean, fragment)
        for member, (weights, snapshot) in enumerate(team.pairs(part)):
            if measures:
                team.note_divergence(member, divergence(reference, snapshot))
            self.merge(weights, reference, snapshot)
        return True

    def _average_in_place(self, replicas: Replicas, active: np.ndarray, part: slice) -> None:
        difference = self.options.merge == "difference"
        average(replicas.addresses, active, (part.start, part.stop), replicas.blocks, self.alpha, difference)


class EncodedMean(ReducedMean):
    """By payloads to and from the owners of shards, see ``mean_mirrors``."""

    def __init__(self, options: RoundOptions, weights: np.ndarray, context: RoundContext) -> None:
        super().__init__(options, weights, context)
        compress.compile_kernels(codec_of(options))
        pending = context.local.memory.array("pending", weights.shape, np.float32)
        place = context.replicas.rank, context.replicas.size
        mirrors = MeanMirrors(options, context.local.replica.layers, place, pending)
        self.sharded = ShardedMean(context.replicas, context.waiting, mirrors)

    def reference(self, snapshot: np.ndarray, fragment: int, active: bool) -> np.ndarray | None:
        """The mean as mirrored; the snapshot becomes the owners' mirror of the replica."""
        if not self.sharded.average(self.snapshot, fragment, active):
            return None
        return self.sharded.mirrors.move(fragment, self.alpha, snapshot)

    def conclude(self) -> None:
        """All receive the pending part of the mean; the next part begins dense."""
        self.weights += np.float32(self.alpha) * self.sharded.pending()
        self.sharded.mirrors.renew()
