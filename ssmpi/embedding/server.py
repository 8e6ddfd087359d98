"""What an embedding PS does with a message: one fast loop over compiled kernels, lock-free among trainers' pushes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ssmpi.embedding import kernels, wire
from ssmpi.embedding.key_lookup_kernels import spare_rows
from ssmpi.embedding.table import Arena, Saver
from ssmpi.runtime.files.run_files import checkpoint_number
from ssmpi.runtime.mpi.push_counts import COUNT, AppliedPushes
from ssmpi.runtime.mpi.service import THREADS, Service


class EmbeddingServer:
    """Answers pulls and pushes on one arena. ``handle`` is the handler of ``Service.serve``. ``address`` tells
    processes of this host how to map the rows; empty if they must not. ``counts`` is the same for the memory of access
    counts, None if accesses are not counted; ``keys`` for that of the maps. ``saver`` writes the rows; optional if
    nothing is saved. ``applied`` counts pushes. ``samples`` is the number of samples of all trainers, as last reported
    by the first one, -1 before; ``checkpoint`` the number of the newest checkpoint that the rows were copied for, 0
    before. ``take_lines`` hands over the lines to report back to it.
    """

    def __init__(
        self, arena: Arena, service: Service, saver: Saver | None = None, address: bytes = b"",
        counts: bytes | None = None, applied: AppliedPushes | None = None,
    ) -> None:  # fmt: skip
        self.arena, self._service, self._saver, self._address = arena, service, saver, address
        self._counts, self._applied = counts, applied or AppliedPushes()
        self.samples, self.checkpoint = -1, 0
        self.keys = b""
        self.take_lines: Callable[[], list[dict[str, Any]]] = list
        self._draining: dict[int, tuple[int, int]] = {}  # by trainer: the thread that waits, and for how many pushes
        self._kinds: dict[int, Callable[[int, int, np.ndarray], None]] = {
            wire.PULL: self._pull,
            wire.PUSH: self._push,
            wire.PULL_BAGS: self._pull_bags,
            wire.PUSH_BAGS: self._push_bags,
            wire.DRAIN: self._drain,
            wire.SAVE: self._save,
            wire.SAVED: self._saved,
            wire.ATTACH: self._attach,
            wire.APPLIED: self._send_applied,
            wire.SAMPLES: self._exchange_status,
            wire.FIND: self._find,
            wire.PULL_KEYS: self._pull_keys,
            wire.SWEEP: self._sweep,
        }

    def handle(self, source: int, tag: int, payload: np.ndarray) -> None:
        """Answer one request; see ``wire`` for the payloads."""
        kind, thread = divmod(tag, THREADS)
        self._kinds[kind](source, thread, payload)

    def _pull(self, source: int, thread: int, payload: np.ndarray) -> None:
        rows, width = payload.view(np.int32), self.arena.options.layout.width
        self.arena.check(rows)
        buffer = self._service.buffer(rows.size * width * 4)
        kernels.gather(self.arena.weights, rows, buffer.view(np.float32).reshape(rows.size, width))
        self._service.reply(source, thread, buffer)

    def _push(self, source: int, thread: int, payload: np.ndarray) -> None:
        width, counted = self.arena.options.layout.width, self._counts is not None
        factor, rows, gradients, times = wire.read_push(payload, width, counted=counted)
        self.arena.check(rows)
        self._apply(source, rows, gradients, factor, times)

    def _pull_bags(self, source: int, thread: int, payload: np.ndarray) -> None:
        asked, width = wire.read_pull_bags(payload), self.arena.options.layout.width
        self.arena.check(asked.singles)
        self.arena.check(asked.rows)
        single, bags = len(asked.singles), len(asked.ends) - 1
        buffer = self._service.buffer((single + bags) * width * 4)
        values = buffer.view(np.float32).reshape(single + bags, width)
        kernels.gather(self.arena.weights, asked.singles, values)
        kernels.pool(self.arena.weights, asked.rows, asked.ends, asked.weights, values[single:])
        self._service.reply(source, thread, buffer)

    def _push_bags(self, source: int, thread: int, payload: np.ndarray) -> None:
        width, counted = self.arena.options.layout.width, self._counts is not None
        factor, singles, bags = wire.read_push_bags(payload, width, counted=counted)
        rows = np.concatenate([singles.rows, bags.rows])
        self.arena.check(rows)
        summed = np.empty((len(rows), width), np.float32)
        summed[: len(singles.rows)] = singles.gradients
        of_bags = summed[len(singles.rows) :]
        kernels.sum_by_row(bags.gradients, bags.places, bags.ends, bags.weights, of_bags)
        times = None
        if singles.times is not None:
            times = np.concatenate([singles.times, np.empty(len(bags.rows), np.int32)])
            kernels.occurrences(bags.places, times[len(singles.rows) :])
        self._apply(source, rows, summed, factor, times)

    def _apply(
        self, source: int, rows: np.ndarray, gradients: np.ndarray, factor: float, times: np.ndarray | None
    ) -> None:
        """Update rows by the push of a trainer, and count it."""
        self.arena.update(rows, gradients, factor, times)
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

    def _pull_keys(self, source: int, thread: int, payload: np.ndarray) -> None:
        rows, asked = wire.read_pull_keys(payload)
        self.arena.check(rows)
        keys, width = len(asked), self.arena.options.layout.width
        buffer = self._service.buffer(4 * (len(rows) + spare_rows(keys, width)) * width)
        values = buffer.view(np.float32).reshape(-1, width)
        kernels.gather(self.arena.weights, rows, values)
        edge = 4 * (len(rows) + keys) * width
        self.arena.keyed.read(
            asked, self.arena.weights, values[len(rows) :], buffer[edge : edge + 4 * keys].view(np.int32)
        )
        self._service.reply(source, thread, buffer)

    def _sweep(self, source: int, thread: int, payload: np.ndarray) -> None:
        self._reply(source, thread, self.arena.keyed.sweep(int(payload.view(np.int64)[0])))

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
