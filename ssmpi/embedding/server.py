"""Answers the messages of an embedding PS: one loop over compiled kernels, without locks between trainers' pushes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from ssmpi.embedding import kernels, wire
from ssmpi.embedding.key_lookup_kernels import spare_rows
from ssmpi.embedding.table import Arena, Saver
from ssmpi.runtime.files.run_files import checkpoint_number
from ssmpi.runtime.mpi.push_counts import COUNT, AppliedPushes
from ssmpi.runtime.mpi.service import THREADS


class Replies(Protocol):
    """The part of a ``Service`` that answers need."""

    def buffer(self, size: int) -> np.ndarray:
        """uint8 (size,), to fill and hand to ``reply``."""

    def reply(self, dest: int, tag: int, buffer: np.ndarray) -> None:
        """Send it."""


class EmbeddingServer:
    """Answers pulls and pushes on one arena. ``handle`` is the handler of ``Service.serve``. ``address`` tells
    processes of this host how to map the rows; empty if they must not. ``counts`` is the same for the memory of access
    counts, None if accesses are not counted; ``keys`` for that of the maps. ``saver`` writes the rows; optional if
    nothing is saved. ``applied`` counts pushes. ``samples`` is the number of samples of all trainers, as last reported
    by the first one, -1 before; ``checkpoint`` the number of the newest checkpoint that the rows were copied for, 0
    before. ``take_lines`` hands over the lines to report back to it.
    """

    def __init__(
        self, arena: Arena, service: Replies, saver: Saver | None = None, address: bytes = b"",
        counts: bytes | None = None, applied: AppliedPushes | None = None,
    ) -> None:  # fmt: skip
        self.arena, self._service, self._saver, self._address = arena, service, saver, address
        arena.begin_clocks()
        self._counts, self._applied = counts, applied or AppliedPushes()
        self.samples, self.checkpoint = -1, 0
        self.keys = b""
        self.take_lines: Callable[[], list[dict[str, Any]]] = list
        self._draining: dict[int, tuple[int, int]] = {}  # by trainer: the thread that waits, and for how many pushes
        self._kinds: dict[int, Callable[[int, int, np.ndarray], None]] = {
            wire.PULL: self._pull,
            wire.PUSH: self._push,
            wire.DRAIN: self._drain,
            wire.SAVE: self._save,
            wire.SAVED: self._saved,
            wire.ATTACH: self._attach,
            wire.APPLIED: self._send_applied,
            wire.SAMPLES: self._exchange_status,
            wire.FIND: self._find,
            wire.SWEEP: self._sweep,
        }

    def handle(self, source: int, tag: int, payload: np.ndarray) -> None:
        """Answer one request; see ``wire`` for the payloads."""
        kind, thread = divmod(tag, THREADS)
        self._kinds[kind](source, thread, payload)

    def _pull(self, source: int, thread: int, payload: np.ndarray) -> None:
        asked, width, arena = wire.read_pull(payload), self.arena.options.layout.width, self.arena
        arena.check(asked.rows)
        single, bags, keys = len(asked.rows), 0, len(asked.keys)
        if asked.bags:
            arena.check(asked.bags.rows)
            bags = len(asked.bags.ends) - 1
        more = bags + spare_rows(keys, width) - keys
        layout = wire.PulledLayout(single + keys, more, width, arena.options.pulled_dtype)
        buffer = self._service.buffer(layout.size)
        values, rest = layout.split(buffer)
        arena.start_reading(asked.rows)
        arena.read(asked.rows, values)
        if asked.bags:
            arena.pool(asked.bags, rest[:bags])
        if keys:
            ids = rest[bags:].reshape(-1).view(np.int32)[:keys]
            rows = arena.keyed.read(asked.keys, ids)
            arena.start_reading(rows)
            arena.read(rows, values[single:])
        self._service.reply(source, thread, buffer)

    def _push(self, source: int, thread: int, payload: np.ndarray) -> None:
        width, counted = self.arena.options.layout.width, self._counts is not None
        numbered, timed = self.arena.options.dtype != np.float32, self.arena.options.clock_bytes > 0
        pushed = wire.read_push(payload, width, counted=counted, numbered=numbered, timed=timed)
        _, rows, gradients, times, bags, number, clock = pushed
        if bags:
            rows, gradients, times = summed(pushed, bags)
        self.arena.check(rows)
        self.arena.update(rows, gradients, pushed.factor, times, number, clock)
        self._applied.by_client[source] += 1
        if source in self._draining:
            self._answer_if_drained(source)

    def _drain(self, source: int, thread: int, payload: np.ndarray) -> None:
        self._draining[source] = thread, int(payload.view(np.int64)[0])
        self._answer_if_drained(source)

    def _answer_if_drained(self, source: int) -> None:
        """Pushes are counted because MPI does not order messages of different threads: a drain may overtake them."""
        thread, sent = self._draining[source]
        if self._applied.by_client[source] >= sent:
            del self._draining[source]
            self._service.reply(source, thread, self._service.buffer(1))

    def _save(self, source: int, thread: int, payload: np.ndarray) -> None:
        assert self._saver
        path, limit_seconds, background = json.loads(payload.tobytes())
        self.checkpoint = checkpoint_number(Path(path).parent) or self.checkpoint  # a model is none
        self._saver.begin(self.arena, Path(path), limit_seconds, background=background)
        self._service.reply(source, thread, self._service.buffer(1))

    def _saved(self, source: int, thread: int, payload: np.ndarray) -> None:
        assert self._saver
        outcome = self._saver.outcome()
        self._reply_text(source, thread, b"" if outcome is None else json.dumps(outcome).encode())

    def _attach(self, source: int, thread: int, payload: np.ndarray) -> None:
        self._reply_text(source, thread, b"\n".join([self._address, self._counts or b"", self.keys]))

    def _find(self, source: int, thread: int, payload: np.ndarray) -> None:
        self._reply(source, thread, self.arena.keyed.find(payload.view(np.int64).reshape(-1, 3)))

    def _sweep(self, source: int, thread: int, payload: np.ndarray) -> None:
        self._reply(source, thread, self.arena.sweep(int(payload.view(np.int64)[0])))

    def _reply(self, source: int, thread: int, values: np.ndarray) -> None:
        buffer = self._service.buffer(values.nbytes)
        buffer[:] = values.reshape(-1).view(np.uint8)
        self._service.reply(source, thread, buffer)

    def _exchange_status(self, source: int, thread: int, payload: np.ndarray) -> None:
        self.samples = int(payload.view(np.int64)[0])
        self._reply_text(source, thread, json.dumps(self.take_lines()).encode())

    def _send_applied(self, source: int, thread: int, payload: np.ndarray) -> None:
        buffer = self._service.buffer(COUNT)
        self._applied.answer(source, buffer)
        self._service.reply(source, thread, buffer)

    def _reply_text(self, source: int, thread: int, value: bytes) -> None:
        buffer = self._service.buffer(wire.TEXT)
        wire.text(value, buffer)
        self._service.reply(source, thread, buffer)


def summed(pushed: wire.Push, bags: wire.PushedBags) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """All rows of a push with ``bags``, single ones first, their gradients, and how many accesses each has."""
    rows, times, single = np.concatenate([pushed.rows, bags.rows]), pushed.times, len(pushed.rows)
    gradients = np.empty((len(rows), pushed.gradients.shape[1]), np.float32)
    gradients[:single] = pushed.gradients
    kernels.sum_by_row(bags.gradients, bags.places, bags.ends, bags.weights, gradients[single:])
    if times is not None:
        times = np.concatenate([times, np.empty(len(bags.rows), np.int32)])
        kernels.occurrences(bags.places, times[single:])
    return rows, gradients, times
