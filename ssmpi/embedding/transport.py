"""How a trainer reaches the rows of embedding PSs: in the memory of those on its host, else by messages."""

from __future__ import annotations

import json
from collections import deque
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ssmpi.comm.service import say_goodbye
from ssmpi.comm.shared_memory import attach
from ssmpi.comm.waiting import WaitOptions, wait_all
from ssmpi.core.errors import PeerError
from ssmpi.core.protocols import MPIRequest, RowLookup, RowSet
from ssmpi.core.topology import Role
from ssmpi.core.traffic import Link
from ssmpi.embedding import wire
from ssmpi.embedding.placement import Placement
from ssmpi.embedding.push_counts import SentPushes
from ssmpi.embedding.server_news import ServerNews
from ssmpi.embedding.table import RowArray, RowOptions
from ssmpi.embedding.trackers import NOTHING, Scope, Tracking, scope_of

if TYPE_CHECKING:
    from ssmpi.comm.messages import Conversation


class RemoteTables:
    """Tables on embedding PSs: rows of one on this host are read and updated in place, others are reached by messages.

    ``shared`` says of each PS whether its rows are at hand; PeerError if ``embedding.transport`` demands that of all
    and one is not. ``sent`` counts pushes by message, ``tracking`` is what PSs count of updates.
    """

    def __init__(
        self,
        conversation: Conversation,
        placement: Placement,
        options: RowOptions,
        waiting: WaitOptions,
        sent: SentPushes | None = None,
        tracking: Tracking = NOTHING,
    ) -> None:
        self._conversation, self._options, self._waiting = conversation, options, waiting
        self._traffic, self.tracking = conversation.meter.traffic, tracking
        self._servers = conversation.directory.ranks_of(Role.EMBEDDING_PS)
        self._in_flight: dict[int, deque[tuple[list[MPIRequest], list[np.ndarray]]]] = {}
        self._sent = sent or SentPushes(servers=len(self._servers))
        self._outcomes: dict[int, dict[str, Any]] = {}
        self._paths: list[Path] = []
        wanted = options.settings.transport != "messages"
        self._near = [
            self._attach(index, scope_of(placement, index)) if wanted else None for index in range(len(self._servers))
        ]
        self._all_near = None not in self._near
        self._news = ServerNews(conversation, waiting)

    def compare_pushes(self) -> None:
        """Before the first push: find those that an earlier process has sent and no PS has applied."""
        for index, server in enumerate(self._servers):
            whose, applied = self._call(server, wire.APPLIED, np.empty(0, np.uint8), wire.COUNT).view(np.int64)
            self._sent.compare(index, int(whose), int(applied))

    @property
    def shared(self) -> list[bool]:
        """Of each PS, whether this process works on its rows in place."""
        return [rows is not None for rows in self._near]

    @property
    def near(self) -> list[np.ndarray]:
        """Weights and state of each PS in turn, empty where its rows are out of reach."""
        nothing = np.empty(0, np.float32)
        pairs = ((rows.weights, rows.state) if rows else (nothing, nothing) for rows in self._near)
        return [array for pair in pairs for array in pair]

    def _attach(self, index: int, scope: Scope) -> RowArray | None:
        """The rows of one PS in its own memory, if that can be mapped."""
        server = self._servers[index]
        text = wire.read_text(self._call(server, wire.ATTACH, np.empty(0, np.uint8), wire.TEXT))
        address, _, counts = text.partition("\n")
        try:
            rows = RowArray(self._options, attach(address, scope.rows * self._options.row_bytes), scope.rows)
            if self.tracking.counts:
                memory = attach(counts, self.tracking.bytes_for(scope))
                rows.tell(self.tracking.over(scope, memory).observe)
            return rows
        except OSError as error:
            if self._options.settings.transport == "auto":
                return None
            raise PeerError(
                f"the rows of {self._conversation.names[server]} cannot be shared: {error}; "
                "set embedding.transport = 'auto', or place a PS on every trainer's host"
            ) from error

    def exchange_news(self, samples: int, saves_rows: bool = True) -> list[dict[str, Any]]:
        """Tell every PS how many samples all trainers have done, which dates what it saves by itself, and whether it is
        to do so; what the PSs have saved so by the last time this was called.
        """
        return self._news.exchange(samples, saves_rows)

    def ask(self, lookup: RowLookup, thread: int) -> None:
        """Send every PS whose rows are out of reach one request, whose reply goes straight into ``lookup.distinct``."""
        if self._all_near:
            self._traffic.add_rows(lookup.found)
            return
        lookup.requests = []
        for server, rows, near in zip(self._servers, lookup.parts, self._near, strict=True):
            if near:
                self._traffic.add_rows(rows.stop - rows.start)
            elif rows.start < rows.stop:
                lookup.requests += [
                    self._conversation.irecv(lookup.distinct[rows], server, thread, Link.EMBEDDING_PULL),
                    self._conversation.isend(
                        lookup.rows[rows], server, wire.tag(wire.PULL, thread), Link.EMBEDDING_PULL
                    ),
                ]

    def collect(self, lookup: RowLookup) -> None:
        """Wait for all replies."""
        if lookup.requests:
            wait_all(lookup.requests, self._waiting, f"the embedding PSs ({len(self._servers)})")
            lookup.requests = []

    def push(self, lookup: RowLookup, gradients: np.ndarray, factor: float, thread: int) -> None:
        """As ``update``, of gradients that are not summed yet: where all rows are within reach, one compiled call does
        both.
        """
        if not self._all_near:
            self.update(lookup, lookup.summed(gradients), factor, thread)
            return
        settings = self._options.settings
        lookup.push(gradients, settings.rate * factor, settings.epsilon)
        self._traffic.add_rows(lookup.found)
        if self.tracking.counts:
            times = lookup.occurrences()
            for rows, near in zip(lookup.parts, self._near, strict=True):
                assert near
                near.observe(lookup.rows[rows], times[rows])

    def update(self, lookup: RowSet, gradients: np.ndarray, factor: float, thread: int) -> None:
        """In place, or one message a PS, not waited for; at most ``pushes_in_flight`` batches are on their way."""
        if not self._all_near:
            self._wait_for_room(thread)
        times = lookup.occurrences() if self.tracking.counts else None
        requests, messages = [], []
        for index, (rows, near) in enumerate(zip(lookup.parts, self._near, strict=True)):
            counted = None if times is None else times[rows]
            if near:
                near.update(lookup.rows[rows], gradients[rows], factor, counted)
                self._traffic.add_rows(rows.stop - rows.start)
            elif rows.start < rows.stop:
                messages.append(wire.push(factor, lookup.rows[rows], gradients[rows], counted))
                requests.append(self._send(messages[-1], index, thread))
        if requests:
            self._in_flight[thread].append((requests, messages))

    def _wait_for_room(self, thread: int) -> None:
        """Before a batch's pushes are made: at most ``pushes_in_flight`` batches are on their way."""
        queue = self._in_flight.setdefault(thread, deque())
        while len(queue) >= self._options.settings.pushes_in_flight:
            wait_all(queue.popleft()[0], self._waiting, "the embedding PSs (to take a push)")

    def _send(self, message: np.ndarray, server: int, thread: int) -> MPIRequest:
        """A push, counted first: one that is lost on the way is one that was sent."""
        self._sent.by_thread[thread][server] += 1
        tag = wire.tag(wire.PUSH, thread)
        return self._conversation.isend(message, self._servers[server], tag, Link.EMBEDDING_PUSH)

    def drain(self) -> None:
        """Wait until every push of this trainer has been applied. Call when its threads are at rest."""
        for queue in self._in_flight.values():
            while queue:
                wait_all(queue.popleft()[0], self._waiting, "the embedding PSs (to take a push)")
        for index, server in enumerate(self._servers):
            self._call(server, wire.DRAIN, np.array([self._sent.to(index)], np.int64), 1)

    def begin_save(self, folder: Path, limit_seconds: float, *, background: bool) -> None:
        """Let every PS start writing its part into ``folder``, all at once; the rows may change when this returns."""
        self._outcomes = {}
        self._paths = [folder / f"embedding-{i:04}.h5" for i in range(len(self._servers))]
        texts = [json.dumps([str(path), limit_seconds, background]) for path in self._paths]
        payloads = [np.frombuffer(text.encode(), np.uint8) for text in texts]
        asked = [self._ask(s, wire.SAVE, payload, 1) for s, payload in zip(self._servers, payloads, strict=True)]
        waiting = replace(self._waiting, time_limit_seconds=limit_seconds + self._waiting.time_limit_seconds)
        for server, path, (_, requests) in zip(self._servers, self._paths, asked, strict=True):
            whom = f"{self._conversation.names[server]} (to write {path})"
            wait_all(requests, waiting, whom, "checkpoint.limit_seconds")

    def saved(self) -> list[dict[str, Any]] | None:
        """What became of each PS's part; None while one is being written."""
        for index, server in enumerate(self._servers):
            if index not in self._outcomes:
                text = wire.read_text(self._call(server, wire.SAVED, np.empty(0, np.uint8), wire.TEXT))
                if not text:
                    return None
                self._outcomes[index] = {"who": self._conversation.names[server], **json.loads(text)}
        return [self._outcomes[index] for index in range(len(self._servers))]

    def awaited(self) -> str:
        """Who has not written what."""
        index = next(index for index in range(len(self._servers)) if index not in self._outcomes)
        return f"{self._conversation.names[self._servers[index]]} has not written {self._paths[index]}"

    def goodbye(self) -> None:
        """Tell every PS that this trainer will not ask again."""
        self._news.finish()
        say_goodbye(self._conversation, self._servers, self._waiting)

    def _call(self, server: int, kind: int, payload: np.ndarray, size: int) -> np.ndarray:
        """Send a request from the main thread and wait for its reply of ``size`` bytes."""
        answer, requests = self._ask(server, kind, payload, size)
        wait_all(requests, self._waiting, self._conversation.names[server])
        return answer

    def _ask(self, server: int, kind: int, payload: np.ndarray, size: int) -> tuple[np.ndarray, list[MPIRequest]]:
        main, answer = wire.THREADS - 1, np.empty(size, np.uint8)
        return answer, [
            self._conversation.irecv(answer, server, main),
            self._conversation.isend(payload, server, wire.tag(kind, main)),
        ]
