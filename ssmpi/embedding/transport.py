"""How a trainer accesses the rows of embedding PSs: in shared memory on the same host, else by messages."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ssmpi.embedding import wire
from ssmpi.embedding.keyed_memory import KeyMemory
from ssmpi.embedding.keyed_table import KeyCounts
from ssmpi.embedding.placement import Placement
from ssmpi.embedding.status_exchange import StatusExchange
from ssmpi.embedding.table import RowArray, RowOptions
from ssmpi.embedding.trackers import NOTHING, Scope, Tracking, scope_of
from ssmpi.runtime.mpi.push_counts import COUNT, SentPushes
from ssmpi.runtime.mpi.service import THREADS, request_tag, say_goodbye
from ssmpi.runtime.mpi.shared_memory import attach
from ssmpi.runtime.mpi.waiting import WaitOptions, wait_all
from ssmpi.runtime.protocols import MPIRequest, RowLookup, RowSet
from ssmpi.runtime.topology import Role
from ssmpi.runtime.traffic import Link

if TYPE_CHECKING:
    from ssmpi.runtime.mpi.messages import Conversation


class RemoteTables:
    """Tables on embedding PSs. Rows of PSs on this host are read and updated in place, others by messages.

    ``sent`` counts pushes by message; ``tracking`` is what PSs record about updates.
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
        wanted = options.settings.shared_memory
        self._keys = len(placement.keyed)
        self._layouts = [KeyMemory(placement, index) for index in range(len(self._servers))]
        self.maps = [[np.empty(0, np.int64)] * 2 * self._keys for _ in self._servers]
        self._mapped = [
            self._attach(index, scope_of(placement, index)) if wanted else None for index in range(len(self._servers))
        ]
        self._all_mapped = None not in self._mapped
        self._status = StatusExchange(conversation, waiting)

    def compare_pushes(self) -> None:
        """Before the first push, find the pushes that an earlier process of this rank sent and no PS applied."""
        for index, server in enumerate(self._servers):
            whose, applied = self._call(server, wire.APPLIED, np.empty(0, np.uint8), COUNT).view(np.int64)
            self._sent.compare(index, int(whose), int(applied))

    @property
    def shared(self) -> list[bool]:
        """For each PS, whether this process works on its rows in place."""
        return [rows is not None for rows in self._mapped]

    @property
    def mapped(self) -> list[np.ndarray]:
        """Weights and optimizer state of each PS in turn, empty arrays if its rows are not mapped."""
        nothing = np.empty(0, np.float32)
        pairs = ((rows.weights, rows.state) if rows else (nothing, nothing) for rows in self._mapped)
        return [array for pair in pairs for array in pair]

    def _attach(self, index: int, scope: Scope) -> RowArray | None:
        """The rows of one PS, mapped from its memory; None if it is not on this host."""
        server = self._servers[index]
        text = wire.read_text(self._call(server, wire.ATTACH, np.empty(0, np.uint8), wire.TEXT))
        address, counts, keys = text.split("\n")
        try:
            rows = RowArray(self._options, attach(address, scope.rows * self._options.row_bytes), scope.rows)
            if self.tracking.counts:
                memory = attach(counts, self.tracking.bytes_for(scope))
                rows.set_observer(self.tracking.over(scope, memory).observe)
            self.maps[index] = self._attach_maps(index, keys)
            return rows
        except OSError:
            return None

    def _attach_maps(self, index: int, address: str) -> list[np.ndarray]:
        """Head with maps and dates of each keyed table of one PS, mapped from its memory."""
        layout = self._layouts[index]
        memory = attach(address, layout.size)
        return [array for table in layout.places for array in layout.maps(memory, table)]

    def find(self, asked: Sequence[np.ndarray], thread: int) -> list[np.ndarray]:
        """As ``KeyTables``: one message to each PS that is asked for something, and wait for the answers."""
        answers, requests = [np.empty(len(each), np.int32) for each in asked], []
        for server, each, answer in zip(self._servers, asked, answers, strict=True):
            if len(each):
                tag = request_tag(wire.FIND, thread)
                requests.append(self._conversation.irecv(answer, server, thread, Link.EMBEDDING_PULL))
                requests.append(self._conversation.isend(each, server, tag, Link.EMBEDDING_PULL))
        wait_all(requests, self._waiting, "the embedding PSs (to find keys)")
        return answers

    def sweep(self, samples: int) -> list[np.ndarray]:
        """While nothing is in flight and no trainer looks up keys: let every PS free rows, after so many ``samples`` of
        all trainers; their counts, as ``KeyCounts``, int64 (keyed features, 7).
        """
        message, size = np.array([samples], np.int64), 8 * self._keys * len(KeyCounts._fields)
        asked = [self._ask(server, wire.SWEEP, message, size) for server in self._servers]
        for server, (_, requests) in zip(self._servers, asked, strict=True):
            wait_all(requests, self._waiting, self._conversation.names[server])
        return [answer.view(np.int64).reshape(self._keys, -1) for answer, _ in asked]

    def exchange_status(self, samples: int) -> list[dict[str, Any]]:
        """Send every PS the number of samples of all trainers, which dates its incremental row saves; returns the PSs'
        lines about saves since the last call. Does not wait for answers.
        """
        return self._status.exchange(samples)

    def ask(self, lookup: RowLookup, thread: int) -> None:
        """Send one request to each PS whose rows are not mapped; the replies are received where the lookup wants
        them.
        """
        lookup.requests = []
        for index, (rows, mapped) in enumerate(zip(lookup.parts, self._mapped, strict=True)):
            if mapped:
                self._traffic.add_rows(rows.stop - rows.start)
            elif rows.start < rows.stop:
                payload, reply = lookup.request(index)
                server, tag = self._servers[index], request_tag(wire.PULL, thread)
                lookup.requests.append(self._conversation.irecv(reply, server, thread, Link.EMBEDDING_PULL))
                lookup.requests.append(self._conversation.isend(payload, server, tag, Link.EMBEDDING_PULL))

    def collect(self, lookup: RowLookup) -> None:
        """Wait for all replies."""
        if lookup.requests:
            wait_all(lookup.requests, self._waiting, f"the embedding PSs ({len(self._servers)})")
            lookup.requests = []

    def push(self, lookup: RowLookup, gradients: np.ndarray, factor: float, thread: int) -> None:
        """As ``update``, but sum the gradients by row first; if all rows are mapped, one compiled call does both."""
        if not self._all_mapped:
            self._update(lookup, lookup.summed(gradients), factor, thread, lookup.pushed_bags(gradients))
            return
        lookup.push(gradients, self._options.optimizer.numbers, factor)
        self._traffic.add_rows(2 * lookup.unique_count)  # read by the lookup, and updated
        if self.tracking.counts:
            times = lookup.occurrences()
            for rows, mapped in zip(lookup.parts, self._mapped, strict=True):
                assert mapped
                mapped.observe(lookup.rows[rows], times[rows])

    def update(self, lookup: RowSet, gradients: np.ndarray, factor: float, thread: int) -> None:
        """Update in place, or send one message per PS without waiting; at most ``pushes_in_flight`` batches are in
        flight.
        """
        self._update(lookup, gradients, factor, thread, {})

    def _update(
        self, lookup: RowSet, gradients: np.ndarray, factor: float, thread: int,
        pooled: Mapping[int, tuple[np.ndarray, wire.PushedBags]],
    ) -> None:  # fmt: skip
        """As ``update``; ``pooled`` is what goes to PSs that get gradients of bags (``Lookup.pushed_bags``)."""
        if not self._all_mapped:
            self._wait_for_room(thread)
        times = lookup.occurrences() if self.tracking.counts else None
        requests, messages = [], []
        for index, (rows, mapped) in enumerate(zip(lookup.parts, self._mapped, strict=True)):
            if mapped:
                mapped.update(lookup.rows[rows], gradients[rows], factor, None if times is None else times[rows])
                self._traffic.add_rows(rows.stop - rows.start)
            elif rows.start < rows.stop:
                single, bags = pooled.get(index, (rows, None))
                counted = None if times is None else times[single]
                messages.append(wire.push(factor, lookup.rows[single], gradients[single], counted, bags))
                requests.append(self._send(messages[-1], index, thread))
        if requests:
            self._in_flight[thread].append((requests, messages))

    def _wait_for_room(self, thread: int) -> None:
        """Before a batch's pushes, wait until fewer than ``pushes_in_flight`` batches are in flight."""
        queue = self._in_flight.setdefault(thread, deque())
        while len(queue) >= self._options.settings.pushes_in_flight:
            wait_all(queue.popleft()[0], self._waiting, "the embedding PSs (to take a push)")

    def _send(self, message: np.ndarray, server: int, thread: int) -> MPIRequest:
        """Send a push, and count it first, so a push lost in flight counts as sent."""
        self._sent.by_thread[thread][server] += 1
        tag = request_tag(wire.PUSH, thread)
        return self._conversation.isend(message, self._servers[server], tag, Link.EMBEDDING_PUSH)

    def drain(self) -> None:
        """Wait until every push of this trainer has been applied. Call while its threads are paused."""
        for queue in self._in_flight.values():
            while queue:
                wait_all(queue.popleft()[0], self._waiting, "the embedding PSs (to take a push)")
        for index, server in enumerate(self._servers):
            self._call(server, wire.DRAIN, np.array([self._sent.to(index)], np.int64), 1)

    def begin_save(self, folder: Path, limit_seconds: float, *, background: bool) -> None:
        """Make all PSs start writing their parts into ``folder`` at the same time; the rows may change once this
        returns.
        """
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
        """The outcome of each PS's part; None while any is being written."""
        servers = range(len(self._servers))
        return [self._outcomes[index] for index in servers] if all(map(self._wrote, servers)) else None

    def awaited(self) -> str:
        """For messages: which PSs have not written which files."""
        names, servers = self._conversation.names, enumerate(self._servers)
        missing = [f"{names[k]} has not written {self._paths[index]}" for index, k in servers if not self._wrote(index)]
        return ", ".join(missing)

    def _wrote(self, index: int) -> bool:
        """Ask a PS for the outcome of its part; whether there is one."""
        server = self._servers[index]
        if index not in self._outcomes:
            text = wire.read_text(self._call(server, wire.SAVED, np.empty(0, np.uint8), wire.TEXT))
            if text:
                self._outcomes[index] = {"who": self._conversation.names[server], **json.loads(text)}
        return index in self._outcomes

    def goodbye(self) -> None:
        """Tell every PS that this trainer sends no more requests."""
        self._status.finish()
        say_goodbye(self._conversation, self._servers, self._waiting)

    def _call(self, server: int, kind: int, payload: np.ndarray, size: int) -> np.ndarray:
        """Send a request from the main thread and wait for its reply of ``size`` bytes."""
        answer, requests = self._ask(server, kind, payload, size)
        wait_all(requests, self._waiting, self._conversation.names[server])
        return answer

    def _ask(self, server: int, kind: int, payload: np.ndarray, size: int) -> tuple[np.ndarray, list[MPIRequest]]:
        main, answer = THREADS - 1, np.empty(size, np.uint8)
        return answer, [
            self._conversation.irecv(answer, server, main),
            self._conversation.isend(payload, server, request_tag(kind, main)),
        ]
