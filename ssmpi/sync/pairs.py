"""Exchanges with one other trainer, drawn at random. The graph is bipartite, to avoid deadlock: even trainers ask, odd
trainers answer one request after the other and never wait.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from ssmpi.runtime.mpi.service import Service
from ssmpi.runtime.mpi.waiting import Backoff, wait_all, wait_until
from ssmpi.sync.exchange import Refer
from ssmpi.sync.mean import ReducedMean
from ssmpi.sync.options import RoundOptions
from ssmpi.sync.round_context import RoundContext

DONE = 0  # tag of an asking trainer's last message in a part of the run
ANSWER = 1  # tag of a snapshot that comes back
ASK = 2  # plus the number of the fragment: tag of a snapshot
NAPS = 10  # without a request for that long a round ends, to check whether training has ended


class PairMean(ReducedMean):  # the model is the mean of the replicas, too
    """The mean of two snapshots; ``seed`` for choosing partners."""

    def __init__(self, options: RoundOptions, weights: np.ndarray, context: RoundContext, seed: int) -> None:
        super().__init__(options, weights, context)
        trainers = context.replicas
        self._asks = trainers.rank % 2 == 0
        self._others = range(1 if self._asks else 0, trainers.size, 2)
        self._chance = np.random.default_rng([seed, trainers.rank])
        self._reply = np.empty_like(weights)
        self._service = Service(trainers)
        self._pause = Backoff()
        self._done = 0

    def round(self, fragment: int, active: bool, refer: Refer) -> bool:
        """Ask a partner; or answer requests, waiting briefly for one. Answers are counted as they are made."""
        if self._asks:
            return super().round(fragment, active, refer)
        for _ in range(NAPS):
            if self._service.answer_pending(self._answer):
                self._pause.reset()
                break
            self._pause.nap()
        return False

    def reference(self, snapshot: np.ndarray, fragment: int, active: bool) -> np.ndarray:
        """The mean of the two snapshots."""
        partner = int(self._chance.choice(self._others))
        trainers, theirs = self.context.replicas, self._reply[: snapshot.size]
        requests = [trainers.irecv(theirs, partner, ANSWER), trainers.isend(snapshot, partner, ASK + fragment)]
        wait_all(requests, self.context.waiting, trainers.names[partner])
        theirs += snapshot
        theirs *= np.float32(0.5)
        return theirs

    def leave(self, follow: Callable[[], bool]) -> bool:
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
        local, part = self.context.local, self.fragments[tag - ASK]
        began, done = time.monotonic(), local.steps
        theirs, weights = payload.view(np.float32), self.weights[part]
        buffer = self._service.buffer(theirs.nbytes)
        snapshot = buffer.view(np.float32)
        np.copyto(snapshot, weights)
        self._service.reply(source, ANSWER, buffer)
        self.merge(weights, (snapshot + theirs) * np.float32(0.5), snapshot)
        self.count(time.monotonic() - began, float(local.steps - done))
