"""Gossip averaging in pairs, as in AD-PSGD (Lian, Zhang, Zhang, Liu, ICML 2018, arXiv 1710.06952)::

    m   = (snapshot_i + snapshot_j) / 2          j: a partner drawn at random
    w_i = w_i + alpha (m - snapshot_i)           AD-PSGD has alpha = 1; the default of 0.5 takes half of that step
    w_j = w_j + alpha (m - snapshot_j)

No server, no barrier: a pair needs no other trainer. The graph is bipartite, as in the paper, to avoid deadlock: even
trainers ask, odd trainers answer one request after the other and never wait. What one gains the other loses, so the sum
of the replicas is conserved, and their mean is the model. A trainer without more data stops asking; it answers until
all askers are done.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from ssmpi.runtime.mpi.service import Service
from ssmpi.runtime.mpi.waiting import Backoff, wait_all, wait_until
from ssmpi.runtime.traffic import Link
from ssmpi.sync.base import ANOTHER_TRAINER, MergeTarget, RoundCost
from ssmpi.sync.ma import MA, AllReduceMean
from ssmpi.sync.options import RoundOptions
from ssmpi.sync.round_context import RoundContext

if TYPE_CHECKING:
    from ssmpi.runtime.topology import Topology

DONE = 0  # tag of an asking trainer's last message in a segment of the run
ANSWER = 1  # tag of a snapshot that comes back
ASK = 2  # tag of a snapshot
SEED = 1  # of the choice of partners
NAPS = 10  # without a request for that long a round ends, to check whether training has ended


@dataclass(frozen=True)
class GossipOptions:
    """``[sync.gossip]`` has no settings of its own."""

    REMOVED: ClassVar = {"seed": (1, "")}


class Gossip(MA):  # the model is the mean of the replicas, too
    """Moves towards the mean of itself and one other trainer."""

    Options: ClassVar[type] = GossipOptions
    partner = ANOTHER_TRAINER
    in_teams = False

    @classmethod
    def make_exchange(
        cls, options: RoundOptions, weights: np.ndarray, context: RoundContext, thread: int = 0
    ) -> GossipExchange:
        """With one other trainer."""
        return GossipExchange(options, weights, context)

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


class GossipExchange(AllReduceMean):  # the model is the mean of the replicas, too
    """The mean of two snapshots."""

    def __init__(self, options: RoundOptions, weights: np.ndarray, context: RoundContext) -> None:
        super().__init__(options, weights, context)
        trainers = context.replicas
        self._asks = trainers.rank % 2 == 0
        self._others = range(1 if self._asks else 0, trainers.size, 2)
        self._chance = np.random.default_rng([SEED, trainers.rank])
        self._reply = np.empty_like(weights)
        self._service = Service(trainers)
        self._pause = Backoff()
        self._done = 0

    def round(self, active: bool, merge_target: MergeTarget) -> bool:
        """Ask a partner; or answer requests, waiting briefly for one. Answers are counted as they are made."""
        if self._asks:
            return super().round(active, merge_target)
        for _ in range(NAPS):
            if self._service.answer_pending(self._answer):
                self._pause.reset()
                break
            self._pause.nap()
        return False

    def reference(self, snapshot: np.ndarray, active: bool) -> np.ndarray:
        """The mean of the two snapshots."""
        partner = int(self._chance.choice(self._others))
        trainers, theirs = self.context.replicas, self._reply
        requests = [trainers.irecv(theirs, partner, ANSWER), trainers.isend(snapshot, partner, ASK)]
        wait_all(requests, self.context.waiting, trainers.names[partner])
        theirs += snapshot
        theirs *= np.float32(0.5)
        return theirs

    def drain_peers(self, follow: Callable[[], bool]) -> bool:
        """Tell the answering trainers that this one is done asking; or answer until all askers are done."""
        trainers, waiting = self.context.replicas, self.context.waiting
        if self._asks:
            word = np.empty(0, np.float32)
            wait_all([trainers.isend(word, other, DONE) for other in self._others], waiting, "the other trainers")
            return True
        while self._done < len(self._others):
            wait_until(lambda: self._service.answer_pending(self._answer), waiting, "the trainers that ask")
        self._done = 0
        return True

    def _answer(self, source: int, tag: int, payload: np.ndarray) -> None:
        """Give a partner this trainer's snapshot, and move towards the mean of the two."""
        if tag == DONE:
            self._done += 1
            return
        local = self.context.local
        began, done = time.monotonic(), local.steps
        theirs = payload.view(np.float32)
        buffer = self._service.buffer(theirs.nbytes)
        snapshot = buffer.view(np.float32)
        np.copyto(snapshot, self.weights)
        self._service.reply(source, ANSWER, buffer)
        self.merge(self.weights, (snapshot + theirs) * np.float32(0.5), snapshot)
        self.count(time.monotonic() - began, float(local.steps - done))
