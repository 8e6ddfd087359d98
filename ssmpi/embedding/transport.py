"""How a trainer reaches embedding rows: in this process, in the memory of a PS on its host, or by messages."""

from __future__ import annotations

import itertools
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
from ssmpi.embedding import kernels, wire
from ssmpi.embedding.placement import Placement
from ssmpi.embedding.table import Arena, RowArray, RowOptions, Saver

if TYPE_CHECKING:
    from ssmpi.comm.messages import Conversation


class Lookup:
    """One batch's rows on their way: ``values`` float32 (batch, features, width) once they have arrived; ``flat`` are
    the same, (batch * features, width). ``parts`` says which of the distinct rows are those of each PS.
    """

    def __init__(self, batch: int, features: int, width: int, servers: int) -> None:
        most = batch * features
        self.rows, self._inverse = np.empty(most, np.int32), np.empty(most, np.int32)
        self.starts = np.zeros(servers + 1, np.int64)
        self.distinct = np.empty((most, width), np.float32)
        self._values = np.empty((batch, features, width), np.float32)
        self.parts: list[slice] = []
        self.requests: list[MPIRequest] = []
        self.resize(batch)

    def resize(self, batch: int) -> None:
        """Use the buffers for a batch of this size."""
        self.values = self._values[:batch]
        self.flat = self.values.reshape(-1, self.values.shape[2])
        self.inverse = self._inverse[: len(self.flat)]

    def cut(self) -> None:
        """``starts`` has been filled in."""
        self.parts = [slice(start, stop) for start, stop in itertools.pairwise(self.starts.tolist())]

    @property
    def found(self) -> int:
        """How many distinct rows there are."""
        return int(self.parts[-1].stop)


class LocalTables:
    """All tables in this process: ``topology.embedding_ps = 0``, and scoring with a finished model.

    ``saver`` writes them; where nothing is saved there need not be one.
    """

    def __init__(self, arena: Arena, saver: Saver | None = None) -> None:
        self.arena, self._saver = arena, saver
        self._path = Path()

    def ask(self, lookup: RowLookup, thread: int) -> None:
        """Fetch at once, so that a prefetched row is as old as one that a message brought."""
        kernels.gather(self.arena.weights, lookup.rows[: lookup.found], lookup.distinct)

    def collect(self, lookup: RowLookup) -> None:
        """Nothing to wait for."""

    def update(self, lookup: RowSet, gradients: np.ndarray, factor: float, thread: int) -> None:
        """Apply at once."""
        self.arena.update(lookup.rows[: len(gradients)], gradients, factor)

    def drain(self) -> None:
        """Every update has been applied."""

    def begin_save(self, folder: Path, limit_seconds: float, *, background: bool) -> None:
        """Start writing the tables into ``folder``; they may change again when this returns."""
        assert self._saver
        self._path = folder / "embedding-0000.h5"
        self._saver.begin(self.arena, self._path, limit_seconds, background=background)

    def saved(self) -> list[dict[str, Any]] | None:
        """What became of it; None while it is being written."""
        assert self._saver
        outcome = self._saver.outcome()
        return None if outcome is None else [outcome]

    def awaited(self) -> str:
        """Who has not written what."""
        return f"trainer 0 has not written {self._path}"

    def goodbye(self) -> None:
        """Nobody to take leave of."""


class RemoteTables:
    """Tables on embedding PSs: rows of one on this host are read and updated in place, others are reached by messages.

    ``near`` says of each PS whether its rows are at hand; PeerError if ``embedding.transport`` demands that of all and
    one is not.
    """

    def __init__(
        self,
        conversation: Conversation,
        placement: Placement,
        options: RowOptions,
        waiting: WaitOptions,
    ) -> None:
        self._conversation, self._options, self._waiting = conversation, options, waiting
        self._servers = conversation.directory.ranks_of(Role.EMBEDDING_PS)
        self._in_flight: dict[int, deque[tuple[list[MPIRequest], list[np.ndarray]]]] = {}
        self._sent: dict[int, list[int]] = {}  # pushes, by thread and PS: no two threads count in one place
        self._outcomes: dict[int, dict[str, Any]] = {}
        self._paths: list[Path] = []
        wanted = options.settings.transport != "messages"
        self._near = [
            self._attach(index, placement.rows_of(index)) if wanted else None for index in range(len(self._servers))
        ]

    @property
    def near(self) -> list[bool]:
        """Of each PS, whether this process works on its rows in place."""
        return [rows is not None for rows in self._near]

    def _attach(self, index: int, count: int) -> RowArray | None:
        """The rows of one PS in its own memory, if that can be mapped."""
        server = self._servers[index]
        address = wire.read_text(self._call(server, wire.ATTACH, np.empty(0, np.uint8), wire.TEXT))
        try:
            return RowArray(self._options, attach(address, count * self._options.row_bytes), count)
        except OSError as error:
            if self._options.settings.transport == "auto":
                return None
            raise PeerError(
                f"the rows of {self._conversation.names[server]} cannot be shared: {error}; "
                "set embedding.transport = 'auto', or place a PS on every trainer's host"
            ) from error

    def ask(self, lookup: RowLookup, thread: int) -> None:
        """Gather the rows of PSs on this host; send every other PS one request, whose reply goes straight into
        ``lookup.distinct``.
        """
        lookup.requests = []
        for server, rows, near in zip(self._servers, lookup.parts, self._near, strict=True):
            if near:
                kernels.gather(near.weights, lookup.rows[rows], lookup.distinct[rows])
            elif rows.start < rows.stop:
                lookup.requests += [
                    self._conversation.irecv(lookup.distinct[rows], server, thread),
                    self._conversation.isend(lookup.rows[rows], server, wire.tag(wire.PULL, thread)),
                ]

    def collect(self, lookup: RowLookup) -> None:
        """Wait for all replies."""
        wait_all(lookup.requests, self._waiting, f"the embedding PSs ({len(self._servers)})")
        lookup.requests = []

    def update(self, lookup: RowSet, gradients: np.ndarray, factor: float, thread: int) -> None:
        """In place, or one message a PS, not waited for; at most ``pushes_in_flight`` batches are on their way."""
        queue = self._in_flight.setdefault(thread, deque())
        while len(queue) >= self._options.settings.pushes_in_flight:
            wait_all(queue.popleft()[0], self._waiting, "the embedding PSs (to take a push)")
        sent = self._sent.setdefault(thread, [0] * len(self._servers))
        requests, messages = [], []
        for index, (rows, near) in enumerate(zip(lookup.parts, self._near, strict=True)):
            if near:
                near.update(lookup.rows[rows], gradients[rows], factor)
            elif rows.start < rows.stop:
                messages.append(wire.push(factor, lookup.rows[rows], gradients[rows]))
                requests.append(
                    self._conversation.isend(messages[-1], self._servers[index], wire.tag(wire.PUSH, thread))
                )
                sent[index] += 1
        if requests:
            queue.append((requests, messages))

    def drain(self) -> None:
        """Wait until every push of this trainer has been applied. Call when its threads are at rest."""
        for queue in self._in_flight.values():
            while queue:
                wait_all(queue.popleft()[0], self._waiting, "the embedding PSs (to take a push)")
        for index, server in enumerate(self._servers):
            sent = sum(counts[index] for counts in self._sent.values())
            self._call(server, wire.DRAIN, np.array([sent], np.int64), 1)

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
