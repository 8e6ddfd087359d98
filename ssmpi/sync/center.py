"""A trainer's end of a conversation with sync PSs, which hold a center in shards, see ``center_shard``. Each fragment
of the vector is dealt to the sync PSs in shards, so that all of them share every round. A trainer exchanges with the
center only and waits for no other trainer; several worker threads may do so concurrently, each with its own exchange.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np

from ssmpi import compress
from ssmpi.runtime.mpi.service import request_tag, say_goodbye
from ssmpi.runtime.mpi.waiting import wait, wait_all
from ssmpi.sync.center_shard import EXCHANGE, FETCH, START
from ssmpi.sync.exchange import Exchange
from ssmpi.sync.options import RoundOptions
from ssmpi.sync.round_context import RoundContext
from ssmpi.sync.shards import shards


class CenterExchange(Exchange):
    """Snapshots for the center's old values, as whole vectors. The first trainer's first thread sends the initial
    center: all start equal.
    """

    def __init__(self, options: RoundOptions, weights: np.ndarray, context: RoundContext, thread: int = 0) -> None:
        super().__init__(options, weights, context)
        self.thread, self._servers = thread, context.sync_ps
        self.shards = shards(weights.size, len(self.fragments), len(self._servers))
        self._reply = np.empty_like(weights)
        if thread == 0 and context.replicas.rank == 0:
            self._start()

    def reference(self, snapshot: np.ndarray, fragment: int, active: bool) -> np.ndarray:
        """The old center; the sync PSs move it."""
        return self.ask(EXCHANGE, fragment, self.shards_of(self.snapshot, fragment))

    # The center as a whole

    def model(self) -> np.ndarray:
        """The center, after every trainer's last round and before anybody's next."""
        self._meet("the other trainers' last round")
        center = self.fetch()
        self._meet("the other trainers (to fetch the center)")
        return center

    def restart(self) -> None:
        """The first trainer sends the initial center again; the others wait until it has arrived."""
        if self.context.replicas.rank == 0:
            self._start()
            self.fetch()
        self._meet("the other trainers (to end their warm-up)")

    def recenter(self, servers: Collection[int], center: np.ndarray, saved: Mapping[str, np.ndarray]) -> None:
        """The first trainer sends the initial values; the others wait until they have arrived."""
        if self.context.replicas.rank == 0:
            for fragment in range(len(self.fragments)):
                own = enumerate(self.shards_of(center, fragment))
                self._send(START, {index: shard for index, shard in own if index in servers})
            self.remember(servers, saved)
            self.fetch()
        self._meet("the other trainers (to restore lost state)")

    def remember(self, servers: Collection[int], saved: Mapping[str, np.ndarray]) -> None:
        """Restore the saved optimizer state of those sync PSs, if they have any."""

    def join(self) -> None:
        """The center is the common model."""
        self.weights[:] = self.fetch()

    def goodbye(self) -> None:
        """Of this trainer."""
        say_goodbye(self.context.center, self._servers, self.context.waiting)

    def fetch(self, kind: int = FETCH) -> np.ndarray:
        """The center, or the state of its optimizer, as one vector (parameters,)."""
        nothing = [np.empty(0, np.float32)] * len(self._servers)
        for fragment in range(len(self.fragments)):
            self.ask(kind, fragment, nothing)
        return self._reply.copy()

    # Messages

    def ask(self, kind: int, fragment: int, messages: list[np.ndarray]) -> np.ndarray:
        """Send each sync PS its message about a fragment and receive its shard of it; the whole, until the next
        call.
        """
        self.call(kind, messages, self.shards_of(self._reply, fragment))
        return self._reply[self.fragments[fragment]]

    def call(self, kind: int, messages: list[np.ndarray], answers: list[np.ndarray]) -> None:
        """Send each sync PS its message and wait for its answer."""
        center = self.context.center
        replies = [center.irecv(answer, r, self.thread) for r, answer in zip(self._servers, answers, strict=True)]
        self._send(kind, dict(enumerate(messages)))
        wait_all(replies, self.context.waiting, "the sync PSs")

    def call_for_payloads(self, fragment: int, messages: list[np.ndarray]) -> list[np.ndarray]:
        """As ``ask``, for an exchange where each sync PS answers with a codec's payload."""
        center, shards = self.context.center, self.shards[fragment]
        buffers = [np.empty(compress.most_bytes(part.stop - part.start), np.uint8) for part in shards]
        replies = [center.irecv_some(into, r, self.thread) for r, into in zip(self._servers, buffers, strict=True)]
        self._send(EXCHANGE, dict(enumerate(messages)))
        wait_all(replies, self.context.waiting, "the sync PSs")
        answers = [buffer[: compress.length_of(buffer)] for buffer in buffers]
        for answer in answers:
            center.meter.received(answer.nbytes)
        return answers

    def shards_of(self, vector: np.ndarray, fragment: int) -> list[np.ndarray]:
        """A fragment of a vector (parameters,) by sync PS, without copies."""
        return [vector[part] for part in self.shards[fragment]]

    def _send(self, kind: int, messages: Mapping[int, np.ndarray]) -> None:
        """Send some sync PSs, by index, a message each."""
        tag = request_tag(kind, self.thread)
        sends = [self.context.center.isend(message, self._servers[i], tag) for i, message in messages.items()]
        wait_all(sends, self.context.waiting, "the sync PSs")

    def _start(self) -> None:
        for fragment in range(len(self.fragments)):
            self._send(START, dict(enumerate(self.shards_of(self.weights, fragment))))

    def _meet(self, whom: str) -> None:
        wait(self.context.replicas.ibarrier(), self.context.waiting, whom)
