"""A trainer's tables: a list of shards, the rows of one embedding PS each. Rows that this process has mapped are read
and updated in place, others by messages (``wire``). Without PSs there is one shard, mapped, whose server is in this
process.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from ssmpi.embedding import table_decay, wire
from ssmpi.embedding.keyed_memory import KeyMemory
from ssmpi.embedding.keyed_table import KeyCounts
from ssmpi.embedding.lookup import Lookup
from ssmpi.embedding.placement import Placement
from ssmpi.embedding.server import EmbeddingServer
from ssmpi.embedding.table import Arena, RowArray, RowOptions, Saver
from ssmpi.embedding.trackers import NOTHING, Scope, Tracking, scope_of
from ssmpi.runtime.mpi.push_counts import COUNT, SentPushes
from ssmpi.runtime.mpi.service import THREADS, request_tag, say_goodbye
from ssmpi.runtime.mpi.shared_memory import attach
from ssmpi.runtime.mpi.waiting import WaitOptions, wait_all
from ssmpi.runtime.protocols import MPIRequest, RowSet
from ssmpi.runtime.topology import Role
from ssmpi.runtime.traffic import Link, Traffic

if TYPE_CHECKING:
    from ssmpi.runtime.mpi.messages import Conversation

# Threads by their tags. A status travels while the main thread waits for others; a worker may drain while it does.
MAIN, STATUS, DRAINER = THREADS - 1, THREADS - 2, THREADS - 3
EMPTY = np.empty(0, np.uint8)


class Shard(Protocol):
    """The rows of one PS as a trainer reaches them: mapped ``rows``, None if they are not, and ``maps``, head with maps
    and dates of each keyed table in turn, int64, empty arrays if they are not mapped. ``name`` is that of their holder.
    """

    name: str
    rows: RowArray | None
    maps: Sequence[np.ndarray]
    traffic: Traffic

    def send(
        self, kind: int, payload: np.ndarray, reply: np.ndarray | None, thread: int = MAIN, link: Link | None = None
    ) -> list[MPIRequest]:
        """Send a message of a ``thread``, and receive its ``reply`` if it has one; returns what to wait for."""

    def goodbye(self, waiting: WaitOptions) -> None:
        """Say that no more messages follow."""


class RemoteShard:
    """Those of PS number ``index`` of a conversation. Rows with what is beside them are mapped if the ``options`` say
    so and the PS is on this host. ``tracking`` is what is counted about updates.
    """

    def __init__(
        self, conversation: Conversation, index: int, placement: Placement, options: RowOptions, waiting: WaitOptions,
        tracking: Tracking,
    ) -> None:  # fmt: skip
        self._conversation, self._rank = conversation, conversation.directory.ranks_of(Role.EMBEDDING_PS)[index]
        self.name, self.traffic = conversation.names[self._rank], conversation.meter.traffic
        self.rows: RowArray | None = None
        self.maps: Sequence[np.ndarray] = [np.empty(0, np.int64)] * 2 * len(placement.keyed)
        if options.settings.shared_memory:
            answer = np.empty(wire.TEXT, np.uint8)
            wait_all(self.send(wire.ATTACH, EMPTY, answer), waiting, self.name)
            scope, layout = scope_of(placement, index), KeyMemory(placement, index)
            with contextlib.suppress(OSError):  # it is on another host
                self._map(wire.read_text(answer).split("\n"), scope, layout, options, tracking)

    def _map(
        self, addresses: Sequence[str], scope: Scope, layout: KeyMemory, options: RowOptions, tracking: Tracking
    ) -> None:
        """Map rows, counts of accesses and maps of keys from these addresses."""
        rows = RowArray(options, attach(addresses[0], options.bytes_for(scope.rows)), scope.rows)
        if tracking.counts:
            rows.set_observer(tracking.over(scope, attach(addresses[1], tracking.bytes_for(scope))).observe)
        memory = attach(addresses[2], layout.size)
        self.rows, self.maps = rows, [array for table in layout.places for array in layout.maps(memory, table)]

    def send(
        self, kind: int, payload: np.ndarray, reply: np.ndarray | None, thread: int = MAIN, link: Link | None = None
    ) -> list[MPIRequest]:
        """As ``Shard``. Neither array may change until the requests are complete."""
        received = [] if reply is None else [self._conversation.irecv(reply, self._rank, thread, link)]
        return [*received, self._conversation.isend(payload, self._rank, request_tag(kind, thread), link)]

    def goodbye(self, waiting: WaitOptions) -> None:
        """Tell the PS."""
        say_goodbye(self._conversation, [self._rank], waiting)


class LocalShard:
    """Those of an ``arena`` of this process, whose server answers at once, one thread at a time. ``saver`` is needed
    only to save. Unless they are ``mapped``, they are reached as those of a PS on another host.
    """

    def __init__(
        self, arena: Arena, saver: Saver | None = None, traffic: Traffic | None = None, *, mapped: bool = True,
        tracking: Tracking = NOTHING,
    ) -> None:  # fmt: skip
        self.name, self.traffic = "trainer 0", traffic or Traffic()
        self.rows: RowArray | None = arena if mapped else None
        nothing = [np.empty(0, np.int64)] * 2 * len(arena.keyed)
        self.maps: Sequence[np.ndarray] = arena.keyed.maps if mapped else nothing
        self._server = EmbeddingServer(arena, self, saver, counts=b"" if tracking.counts else None)
        self._answering, self._reply = threading.Lock(), EMPTY

    def send(
        self, kind: int, payload: np.ndarray, reply: np.ndarray | None, thread: int = MAIN, link: Link | None = None
    ) -> list[MPIRequest]:
        """As ``Shard``; there is nothing to wait for."""
        with self._answering:
            self._server.handle(0, request_tag(kind, thread), payload.reshape(-1).view(np.uint8))
            if reply is not None:
                reply.reshape(-1).view(np.uint8)[:] = self._reply
        return []

    def buffer(self, size: int) -> np.ndarray:
        """As ``Service``."""
        return np.empty(size, np.uint8)

    def reply(self, dest: int, tag: int, buffer: np.ndarray) -> None:
        """As ``Service``."""
        self._reply = buffer

    def goodbye(self, waiting: WaitOptions) -> None:
        """Nobody waits for it."""


class Tables:
    """All tables of a trainer, in ``shards``. ``sent`` counts pushes by message; ``tracking`` is what is counted about
    updates.
    """

    def __init__(
        self, shards: Sequence[Shard], placement: Placement, options: RowOptions,
        waiting: WaitOptions | None = None, sent: SentPushes | None = None, tracking: Tracking = NOTHING,
    ) -> None:  # fmt: skip
        self.shards, self.placement, self.options = shards, placement, options
        self.sent, self.tracking = sent or SentPushes(servers=len(shards)), tracking
        self._waiting, self._traffic = waiting or WaitOptions(), shards[0].traffic
        self.all_mapped = all(shard.rows for shard in shards)
        self._decays = options.settings.table_decay > 0
        self.begin_clocks()
        self._in_flight: defaultdict[int, deque[list[MPIRequest]]] = defaultdict(deque)  # by thread
        self._statuses: dict[int, tuple[list[MPIRequest], np.ndarray, np.ndarray]] = {}  # by shard
        self._outcomes: dict[int, dict[str, Any]] = {}  # of a save, by shard
        self._paths: list[Path] = []

    def begin_clocks(self) -> None:
        """Those of tables begin anew, and so does this trainer's, of steps that all take together."""
        self._clock = np.array(table_decay.BEGIN)

    @property
    def mapped(self) -> list[np.ndarray]:
        """Weights and optimizer state of each shard in turn, empty arrays if they are not mapped: a lookup fetches and
        updates those where they lie. Of tables that decay it leaves that to ``ask`` and ``update``.
        """
        rows = (None if self._decays else shard.rows for shard in self.shards)
        nothing = np.empty(0, self.options.pulled_dtype), np.empty(0, np.float32)
        pairs = ((each.weights, each.state) if each else nothing for each in rows)
        return [array for pair in pairs for array in pair]

    @property
    def maps(self) -> list[Sequence[np.ndarray]]:
        """Those of each shard."""
        return [shard.maps for shard in self.shards]

    def find(self, asked: Sequence[np.ndarray], thread: int) -> list[np.ndarray]:
        """The ids int32 (n,) of the keys that are ``asked`` of each shard: int64 (n, 3), key, number of the keyed
        feature and how often it is looked up now, 0 if that does not count; in the order of features.
        """
        answers, requests = [np.empty(len(keys), np.int32) for keys in asked], []
        for shard, keys, answer in zip(self.shards, asked, answers, strict=True):
            if len(keys):
                requests += shard.send(wire.FIND, keys, answer, thread, Link.EMBEDDING_PULL)
        wait_all(requests, self._waiting, "the embedding PSs (to find keys)")
        return answers

    def ask(self, lookup: Lookup, thread: int) -> None:
        """Send a PULL to each PS whose rows are not mapped; replies are received where the lookup wants them. Mapped
        rows of tables that decay are read now, unless the PSs pool.
        """
        lookup.requests = []
        for index, (rows, shard) in enumerate(zip(lookup.parts, self.shards, strict=True)):
            if shard.rows and not (self._decays and lookup.pools):
                self._traffic.add_rows(rows.stop - rows.start)
                if self._decays:
                    shard.rows.read(lookup.rows[rows], lookup.unique[rows])
            elif rows.start < rows.stop:
                lookup.requests += shard.send(wire.PULL, *lookup.request(index), thread, Link.EMBEDDING_PULL)

    def collect(self, lookup: Lookup) -> None:
        """Wait for all replies."""
        if lookup.requests:
            wait_all(lookup.requests, self._waiting, f"the embedding PSs ({len(self.shards)})")
            lookup.requests = []

    def push(self, lookup: Lookup, gradients: np.ndarray, factor: float, thread: int) -> None:
        """Apply gradients float32 (batch, features, width) of ``lookup.values`` at ``factor`` times the learning rate,
        as ``update`` does. If all rows are mapped, one compiled call sums them by row and updates.
        """
        if self._decays or not self.all_mapped:
            bags = lookup.pushed_bags(gradients)
            self._update(lookup, lookup.summed(gradients), factor, thread, bags, table_decay.OWN)
            return
        lookup.push(gradients, self.options.optimizer.numbers, factor)
        self._traffic.add_rows(2 * lookup.unique_count)  # read by the lookup, and updated
        if self.tracking.counts:
            times = lookup.occurrences()
            for rows, shard in zip(lookup.parts, self.shards, strict=True):
                assert shard.rows
                shard.rows.observe(lookup.rows[rows], times[rows])

    def update(self, lookup: RowSet, gradients: np.ndarray, factor: float, thread: int) -> None:
        """Apply gradients float32 (rows, width) of unique rows: in place, or by a message to each PS without waiting;
        those of at most ``pushes_in_flight`` batches are in flight. It is a step of all tables that decay, one of all
        trainers together: each calls this in every step, with rows of its own or none, and then drains before any
        looks up rows.
        """
        factor = float(np.float32(factor))  # as messages have it: all write the same clock
        self._update(lookup, gradients, factor, thread, {}, self._clock)
        self._clock = self._clock + np.array([1.0, factor])

    def _update(
        self, lookup: RowSet, gradients: np.ndarray, factor: float, thread: int,
        pooled: Mapping[int, tuple[np.ndarray, wire.PushedBags]], clock: np.ndarray,
    ) -> None:  # fmt: skip
        """As ``update``; ``pooled`` is what goes to PSs that get gradients of bags (``Lookup.pushed_bags``), ``clock``
        that of tables before the step.
        """
        queue = self._in_flight[thread]
        while len(queue) >= self.options.settings.pushes_in_flight:
            wait_all(queue.popleft(), self._waiting, "the embedding PSs (to take a push)")
        times = lookup.occurrences() if self.tracking.counts else None
        requests, tail = list[MPIRequest](), [np.array([lookup.number])] * (self.options.dtype != np.float32)
        tail += [clock] * self._decays
        for index, (rows, shard) in enumerate(zip(lookup.parts, self.shards, strict=True)):
            if shard.rows:
                counted = None if times is None else times[rows]
                shard.rows.update(lookup.rows[rows], gradients[rows], factor, counted, lookup.number, clock)
                self._traffic.add_rows(rows.stop - rows.start)
            elif rows.start < rows.stop or self._decays:
                single, bags = pooled.get(index, (rows, None))
                counted = None if times is None else times[single]
                message = wire.push(factor, lookup.rows[single], gradients[single], counted, bags, tail)
                self.sent.by_thread[thread][index] += 1  # before it is sent: one that is lost in flight counts
                requests += shard.send(wire.PUSH, message, None, thread, Link.EMBEDDING_PUSH)
        if requests:
            queue.append(requests)

    def drain(self) -> None:
        """Wait until every push of this trainer has been applied. Call while its threads are paused."""
        for queue in self._in_flight.values():
            while queue:
                wait_all(queue.popleft(), self._waiting, "the embedding PSs (to take a push)")
        for index, shard in enumerate(self.shards):
            self._call(shard, wire.DRAIN, np.array([self.sent.to(index)], np.int64), 1, DRAINER)

    def compare_pushes(self) -> None:
        """Before the first push, find the pushes that an earlier process of this rank sent and no PS applied."""
        for index, shard in enumerate(self.shards):
            whose, applied = self._call(shard, wire.APPLIED, EMPTY, COUNT).view(np.int64)
            self.sent.compare(index, int(whose), int(applied))

    def sweep(self, samples: int) -> list[KeyCounts]:
        """While nothing is in flight and no trainer looks up rows: let keyed tables free rows, after so many
        ``samples`` of all trainers, and rows catch up with the decay of their tables; what each keyed one holds. The
        other trainers ``begin_clocks``.
        """
        self.begin_clocks()
        message, size = np.array([samples], np.int64), 8 * len(self.placement.keyed) * len(KeyCounts._fields)
        answers, requests = [np.empty(size, np.uint8) for _ in self.shards], []
        for shard, answer in zip(self.shards, answers, strict=True):
            requests += shard.send(wire.SWEEP, message, answer)
        wait_all(requests, self._waiting, "the embedding PSs (to free rows, or let them decay)")
        counts = np.sum([answer.view(np.int64) for answer in answers], axis=0)
        return [KeyCounts(*row) for row in counts.reshape(-1, len(KeyCounts._fields)).tolist()]

    def exchange_status(self, samples: int) -> list[dict[str, Any]]:
        """Send the number of ``samples`` of all trainers, which dates incremental row saves, to each PS that has
        answered the previous message; returns the PSs' lines about saves since then, with their index as ``ps``. Does
        not wait for answers.
        """
        lines = []
        for index, shard in enumerate(self.shards):
            if index in self._statuses:
                requests, answer, _ = self._statuses[index]
                if not all(request.Test() for request in requests):
                    continue
                lines += [{"ps": index, **line} for line in json.loads(wire.read_text(answer))]
            message, answer = np.array([samples], np.int64), np.empty(wire.TEXT, np.uint8)
            self._statuses[index] = shard.send(wire.SAMPLES, message, answer, STATUS), answer, message
        return lines

    def begin_save(self, folder: Path, limit_seconds: float, *, background: bool) -> None:
        """Make all PSs start writing their parts into ``folder`` at the same time; the rows may change once this
        returns.
        """
        self._outcomes = {}
        self._paths = [folder / f"embedding-{index:04}.h5" for index in range(len(self.shards))]
        texts = [json.dumps([str(path), limit_seconds, background]) for path in self._paths]
        answers = np.empty((len(self.shards), 1), np.uint8)
        asked = [
            shard.send(wire.SAVE, np.frombuffer(text.encode(), np.uint8), answer)
            for shard, text, answer in zip(self.shards, texts, answers, strict=True)
        ]
        waiting = replace(self._waiting, time_limit_seconds=limit_seconds + self._waiting.time_limit_seconds)
        for shard, path, requests in zip(self.shards, self._paths, asked, strict=True):
            wait_all(requests, waiting, f"{shard.name} (to write {path})", "checkpoint.limit_seconds")

    def saved(self) -> list[dict[str, Any]] | None:
        """The outcome of each shard's file; None while any is being written."""
        written = [self._wrote(index) for index in range(len(self.shards))]
        return [self._outcomes[index] for index in range(len(self.shards))] if all(written) else None

    def awaited(self) -> str:
        """For messages: who has not written which files."""
        paths = zip(self.shards, self._paths, strict=True)
        missing = [
            f"{s.name} has not written {path}" for index, (s, path) in enumerate(paths) if not self._wrote(index)
        ]
        return ", ".join(missing)

    def _wrote(self, index: int) -> bool:
        """Ask for the outcome of a shard's file; whether there is one."""
        if index not in self._outcomes:
            shard = self.shards[index]
            text = wire.read_text(self._call(shard, wire.SAVED, EMPTY, wire.TEXT))
            if text:
                self._outcomes[index] = {"who": shard.name, **json.loads(text)}
        return index in self._outcomes

    def goodbye(self) -> None:
        """Tell every PS that this trainer sends no more requests."""
        statuses = [request for requests, *_ in self._statuses.values() for request in requests]
        wait_all(statuses, self._waiting, "the embedding PSs (to answer the last status)")
        self._statuses = {}
        for shard in self.shards:
            shard.goodbye(self._waiting)

    def _call(self, shard: Shard, kind: int, payload: np.ndarray, size: int, thread: int = MAIN) -> np.ndarray:
        """Send a message of a ``thread`` and wait for its reply of ``size`` bytes."""
        answer = np.empty(size, np.uint8)
        wait_all(shard.send(kind, payload, answer, thread), self._waiting, shard.name)
        return answer


def remote_tables(
    conversation: Conversation, placement: Placement, options: RowOptions, waiting: WaitOptions,
    sent: SentPushes | None = None, tracking: Tracking = NOTHING,
) -> Tables:  # fmt: skip
    """Tables on embedding PSs."""
    shards = [
        RemoteShard(conversation, index, placement, options, waiting, tracking) for index in range(placement.servers)
    ]
    return Tables(shards, placement, options, waiting, sent, tracking)


def local_tables(
    *arenas: Arena, saver: Saver | None = None, traffic: Traffic | None = None, mapped: bool = True,
    tracking: Tracking = NOTHING,
) -> Tables:  # fmt: skip
    """Tables in this process, of which these are all ``arenas``; unless they are ``mapped``, messages reach them."""
    shards = [LocalShard(arena, saver, traffic, mapped=mapped, tracking=tracking) for arena in arenas]
    return Tables(shards, arenas[0].placement, arenas[0].options, tracking=tracking)
