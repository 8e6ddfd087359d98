"""Gossip averaging in pairs, as in AD-PSGD (Lian, Zhang, Zhang, Liu, ICML 2018, arXiv 1710.06952)::

    m   = (snapshot_i + snapshot_j) / 2          j: a partner drawn at random
    w_i = w_i + alpha (m - snapshot_i)           AD-PSGD has alpha = 1; the default of 0.5 takes half of that step
    w_j = w_j + alpha (m - snapshot_j)

No server, no barrier: a pair needs no other trainer. The graph is bipartite, as in the paper, to avoid deadlock: even
trainers ask, odd trainers answer one request after the other and never wait. What one gains the other loses, so the sum
of the replicas is conserved (with ``merge = "difference"``), and their mean is the model. A trainer without more data
stops asking; it answers until all askers are done.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from ssmpi.comm.service import Service
from ssmpi.comm.waiting import Backoff, wait_all, wait_until
from ssmpi.core.settings import COUNT, within
from ssmpi.core.traffic import Link
from ssmpi.sync.cost import RoundCost
from ssmpi.sync.ma import MA
from ssmpi.sync.options import RoundOptions
from ssmpi.sync.round_context import RoundContext

if TYPE_CHECKING:
    from ssmpi.core.topology import Topology

DONE = 0  # tag of an asking trainer's last message in a part of the run
ANSWER = 1  # tag of a snapshot that comes back
ASK = 2  # plus the number of the fragment: tag of a snapshot
NAPS = 10  # without a request for that long a round ends, to check whether training has ended


@dataclass(frozen=True)
class GossipOptions:
    """``[sync.gossip]``: ``seed`` for choosing partners."""

    seed: int = 1

    def __post_init__(self) -> None:
        within("seed", self.seed, 0, COUNT)


class Gossip(MA):  # the model is the mean of the replicas, too
    """Moves towards the mean of itself and one other trainer."""

    Options: ClassVar[type] = GossipOptions
    partner = "another trainer"
    no_codec = "meets another partner each time, and would need mirrors of every one"
    in_groups = False

    def __init__(self, options: RoundOptions, weights: np.ndarray, context: RoundContext) -> None:
        super().__init__(options, weights, context)
        trainers = context.trainers
        self._asks = trainers.rank % 2 == 0
        self._others = range(1 if self._asks else 0, trainers.size, 2)
        self._chance = np.random.default_rng([options.own(GossipOptions).seed, trainers.rank])
        self._reply = np.empty_like(weights)
        self._service = Service(trainers, context.waiting)
        self._pause = Backoff(context.waiting)
        self._done = 0

    @classmethod
    def cost(cls, options: RoundOptions, topology: Topology, parameters: int) -> RoundCost:
        """A snapshot in each direction."""
        return RoundCost({Link.TRAINERS: 4.0 * parameters})

    @classmethod
    def option_error(cls, options: RoundOptions) -> str:
        """A partner's request may come at any time."""
        if options.pace == "shadow":
            return ""
        return "answers its partners at any time, on a thread of its own: set sync.pace = 'shadow'"

    def step(self, active: bool = True) -> bool:
        """Ask a partner; or answer requests, waiting briefly for one. Answers are counted as they are made."""
        if self._asks:
            return super().step(active)
        for _ in range(NAPS):
            if self._service.answer_pending(self._answer):
                self._pause.reset()
                break
            self._pause.nap()
        return False

    def exchange(self, snapshot: np.ndarray, fragment: int, active: bool) -> np.ndarray:
        """The mean of the two snapshots."""
        partner = int(self._chance.choice(self._others))
        trainers, theirs = self.context.trainers, self._reply[: snapshot.size]
        requests = [trainers.irecv(theirs, partner, ANSWER), trainers.isend(snapshot, partner, ASK + fragment)]
        wait_all(requests, self.context.waiting, trainers.names[partner])
        theirs += snapshot
        theirs *= np.float32(0.5)
        return theirs

    def close(self) -> None:
        """Tell the answering trainers that this one is done asking; or answer until all askers are done."""
        if self._asks:
            word = np.empty(0, np.float32)
            words = [self.context.trainers.isend(word, other, DONE) for other in self._others]
            wait_all(words, self.context.waiting, "the other trainers")
            return
        while self._done < len(self._others):
            wait_until(
                lambda: self._service.answer_pending(self._answer), self.context.waiting, "the trainers that ask"
            )
        self._done = 0

    def _answer(self, source: int, tag: int, payload: np.ndarray) -> None:
        """Give a partner this trainer's snapshot, and move towards the mean of the two."""
        if tag == DONE:
            self._done += 1
            return
        began, done, part = time.monotonic(), self.iterations, self.fragments[tag - ASK]
        theirs, weights = payload.view(np.float32), self.weights[part]
        buffer = self._service.buffer(theirs.nbytes)
        snapshot = buffer.view(np.float32)
        np.copyto(snapshot, weights)
        self._service.reply(source, ANSWER, buffer)
        self.merge(weights, (snapshot + theirs) * np.float32(0.5), snapshot)
        self.rounds += 1
        self.round_seconds += time.monotonic() - began
        self.staleness += self.iterations - done
