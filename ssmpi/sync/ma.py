"""Model averaging, S-MA and FR-MA (ShadowSync, arXiv 2003.03477)::

    u   = (1/n) sum_i w_i          over a snapshot of every trainer's replica, by nonblocking all-reduce
    w_i = w_i + alpha (u - snapshot_i)      Local SGD: alpha = 1, fixed_rate; the default of 0.5 takes half of that step

On one host the replicas are averaged in place, by one trainer for all (``host_average``); the all-reduce is then one
among hosts. A trainer that is out of data takes part with weight 0, and the count of active ones travels in the reduced
buffer, so n is those that still train. When it reaches 0, all of them leave in the same round.

With a codec trainers own shards of the vector, and tell each other by payloads, see ``mean_mirrors``; those of one host
too, so that a codec is seen at work.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from ssmpi import compress
from ssmpi.core.traffic import Link
from ssmpi.sync import mean_mirrors
from ssmpi.sync.average import Average, reduced_bytes
from ssmpi.sync.base import Synchronizer, divergence
from ssmpi.sync.cost import RoundCost
from ssmpi.sync.in_place import Replicas, average
from ssmpi.sync.mean_mirrors import MeanMirrors
from ssmpi.sync.mirrors import merge_error
from ssmpi.sync.options import DENSE, RoundOptions
from ssmpi.sync.round_context import RoundContext
from ssmpi.sync.sharded_mean import ShardedMean

if TYPE_CHECKING:
    from ssmpi.core.topology import Topology


@dataclass(frozen=True)
class MAOptions:
    """``[sync.ma]`` has no settings of its own."""


class MA(Synchronizer):
    """Moves towards the mean of the trainers that still train."""

    Options: ClassVar[type] = MAOptions
    in_groups = True
    no_codec = ""
    words_beside = 1  # in each all-reduce: the weight

    def __init__(self, options: RoundOptions, weights: np.ndarray, context: RoundContext) -> None:
        super().__init__(options, weights, context)
        self.average = Average(context.trainers, context.waiting, weights.size)
        if self.group:
            self._of_leaders = Average(self.group.leaders, context.waiting, weights.size)
        self._owners: ShardedMean | None = None
        if options.codec != DENSE:
            compress.compile_kernels(options.codec)
            place = context.trainers.rank, context.trainers.size
            pending = context.local.memory.array("pending", weights.shape, np.float32)
            mirrors = MeanMirrors(options, context.local.replica.layers, place, pending)
            self._owners = ShardedMean(context.trainers, context.waiting, mirrors)
        self._all_ended = False  # on all hosts; every leader sees it in the same round

    @classmethod
    def codec_error(cls, options: RoundOptions) -> str:
        """Mirrors follow the moves of what they mirror, but interpolation moves a replica by an amount that the others
        do not know.
        """
        return cls.no_codec or merge_error(options)

    @classmethod
    def cost(cls, options: RoundOptions, topology: Topology, parameters: int) -> RoundCost:
        """An all-reduce of each fragment, among hosts if one trainer averages those of its host; or, with a codec,
        what ``mean_mirrors`` counts.
        """
        if options.codec != DENSE:
            return mean_mirrors.cost(options, topology, parameters)
        words = parameters + cls.words_beside * options.fragments
        return RoundCost({Link.TRAINERS: reduced_bytes(4 * words, topology.trainers)})

    @property
    def idle(self) -> bool:
        """One trainer alone is its own mean."""
        return self.context.trainers.size == 1

    def exchange(self, snapshot: np.ndarray, fragment: int, active: bool) -> np.ndarray | None:
        """The mean of the snapshots, passed through ``refer``."""
        if self._owners:
            return self._exchange_with(self._owners, snapshot, fragment, active)
        mean = self.average.of(snapshot, active)
        return None if mean is None else self.refer(mean, fragment)

    def _exchange_with(
        self, owners: ShardedMean, snapshot: np.ndarray, fragment: int, active: bool
    ) -> np.ndarray | None:
        """The mean as mirrored; the snapshot becomes the owners' mirror of the replica."""
        if not owners.average(self.snapshot, fragment, active):
            return None
        return owners.mirrors.move(fragment, self.alpha, snapshot)

    def refer(self, mean: np.ndarray, fragment: int) -> np.ndarray:
        """The reference that replicas move towards, given their mean; here the mean itself."""
        return mean

    def move_in_place(self, replicas: Replicas, active: np.ndarray, part: slice) -> None:
        """Move a part of all replicas of this host, which are all there are, as ``refer`` and ``merge`` would."""
        difference = self.options.merge == "difference"
        average(replicas.addresses, active, (part.start, part.stop), replicas.room, self.alpha, difference)

    def step(self, active: bool = True) -> bool:
        """As the base class; the leader of a group exchanges for all its members that still train, who do nothing."""
        if not self.group:
            return super().step(active)
        return self.group.leads and self._step_of_group(everyone=False)

    def step_of_everyone(self) -> bool:
        """One exchange in which all replicas count, also those of trainers that have ended."""
        return self._step_of_group(everyone=True) if self.group else super().step()

    def _step_of_group(self, *, everyone: bool) -> bool:
        assert self.group
        fragment = self.next_fragment()
        part = self.fragments[fragment]
        self.group.wait_for_members(self.context.waiting)
        active, measures = self.group.active, self.measures_now()
        if self.group.alone and active.any() and not (everyone or measures):
            self.move_in_place(self.group.in_place, active, part)
            return True
        total = self._of_leaders.room(part.stop - part.start)
        mean = self._of_leaders.of_sums(total.size, self.group.snapshot(part, total, everyone=everyone))
        if mean is None:
            self._all_ended = True
            return False
        reference = self.refer(mean, fragment)
        for member, (weights, snapshot) in enumerate(self.group.pairs(part)):
            if measures:
                self.group.note_divergence(member, divergence(reference, snapshot))
            self.merge(weights, reference, snapshot)
        return True

    def begin(self) -> None:
        """A part of the run begins."""
        self._all_ended = False
        super().begin()

    def close(self) -> None:
        """Follow the mean of the trainers that still train, until none does."""
        self.end()
        if self.group and not self.group.leads:
            self.group.wait_for_leader()
            return
        while not self._all_ended and self.step(active=False):
            pass
        self.conclude()
        if self.group:
            self.group.close()

    def conclude(self) -> None:
        """A hook for algorithms, called once no trainer trains any more; here, with a codec, it sends the pending part
        of the mean.
        """
        if self._owners:
            self.weights += np.float32(self.alpha) * self._owners.pending()
            self._owners.mirrors.begin()

    def model(self) -> np.ndarray:
        """The mean of all replicas."""
        mean = self.average.of(self.weights)
        assert mean is not None
        return mean.copy()
