"""The control conversation: the first trainer's main thread deals row blocks, gathers reports and passes on a stop."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from ssmpi.comm.service import Service
from ssmpi.comm.signals import stop_asked
from ssmpi.comm.waiting import Patience, wait_all
from ssmpi.data.handout import NOTHING_LEFT, Handout
from ssmpi.metrics import BINS, SUMS

if TYPE_CHECKING:
    from ssmpi.comm.messages import Conversation

REPORT = 1000  # tag of a report and of its answer
WANT = 2000  # plus the thread's number: tag of a request for a block; the answer has the thread's number alone
HEADER = ("stop", "finished", "iterations", "rounds", "round_seconds", "staleness", "divergence")
REPORT_SECONDS = 1.0

Report = dict[str, float]


def pack(header: Report, sums: np.ndarray, histogram: np.ndarray) -> np.ndarray:
    """A report as float64 words: header, sums (5,), histogram (2, BINS). Counts stay exact below 2^53."""
    return np.concatenate([[header[name] for name in HEADER], sums, histogram.reshape(-1)]).astype(np.float64)


def unpack(words: np.ndarray) -> tuple[Report, np.ndarray, np.ndarray]:
    """Header, sums and histogram of a report."""
    edge = len(HEADER) + len(SUMS)
    header = dict(zip(HEADER, words.tolist(), strict=False))
    return header, words[len(HEADER) : edge], words[edge:].reshape(2, BINS).astype(np.int64)


class Control:
    """One trainer's end. ``gathered(trainer, words)`` is called on the first trainer for every report.

    Worker threads call ``next_block``; the main thread calls ``tick`` while they train.
    """

    def __init__(self, conversation: Conversation, threads: int, patience: Patience) -> None:
        self._conversation, self._threads, self._patience = conversation, threads, patience
        self._service = Service(conversation, patience) if conversation.rank == 0 else None
        self._answer = np.zeros(1, np.int64)
        self._pending: list[Any] = []
        self._outgoing: np.ndarray | None = None
        self._last = 0.0
        self._unfinished: set[int] = set()
        self.handout: Handout | None = None
        self.gathered: Callable[[int, np.ndarray], None] = lambda trainer, words: None
        self._told = False

    @property
    def stopping(self) -> bool:
        """Whether somebody asked this trainer to stop, or any trainer and the word has come here."""
        return self._told or stop_asked()

    def begin(self, handout: Handout) -> None:
        """A part of the run starts: deal from ``handout`` (only the first trainer's counts)."""
        self.handout = handout
        self._unfinished = set(range(self._conversation.size))
        self._last = time.monotonic()

    def next_block(self, thread: int) -> int:
        """The next row block for one worker thread, or NOTHING_LEFT. Called on that thread."""
        asker = np.array([self._conversation.rank * self._threads + thread], np.int64)
        block = np.empty(1, np.int64)
        requests = [
            self._conversation.irecv(block, 0, thread),
            self._conversation.isend(asker, 0, WANT + thread),
        ]
        wait_all(requests, self._patience, "trainer 0 (to deal a row block)")
        return int(block[0])

    def tick(self, report: Callable[[bool], np.ndarray], *, finished: bool = False) -> bool:
        """Answer and report where it is time; True once this trainer need not stay for the others.

        ``report(finished)`` makes this trainer's report and starts the next one from zero.
        """
        if self._service:
            self._service.answer_waiting(self._handle)
        mine = self._conversation.rank in self._unfinished
        if not self._report_under_way() and mine and (finished or time.monotonic() - self._last > REPORT_SECONDS):
            self._last = time.monotonic()
            self._send(report(finished))
            if finished:
                self._unfinished.discard(self._conversation.rank)
        if self._service:
            return not self._unfinished
        return finished and self._conversation.rank not in self._unfinished and not self._report_under_way()

    def _send(self, words: np.ndarray) -> None:
        if self._service:
            self._take_report(0, words)
            return
        self._outgoing = words
        self._pending = [
            self._conversation.irecv(self._answer, 0, REPORT),
            self._conversation.isend(words, 0, REPORT),
        ]

    def _report_under_way(self) -> bool:
        self._pending = [request for request in self._pending if not request.Test()]
        if not self._pending and self._outgoing is not None:
            self._outgoing = None
            if self._answer[0]:
                self._told = True
        return bool(self._pending)

    def _handle(self, source: int, tag: int, payload: np.ndarray) -> None:
        """On the first trainer: answer one message."""
        assert self._service
        buffer = self._service.buffer(8)
        if tag == REPORT:
            self._take_report(source, payload.view(np.float64).copy())
            buffer.view(np.int64)[0] = self.stopping
        else:
            assert self.handout
            asker = int(payload.view(np.int64)[0])
            buffer.view(np.int64)[0] = NOTHING_LEFT if self.stopping else self.handout.next_block(asker)
        self._service.reply(source, tag if tag == REPORT else tag - WANT, buffer)

    def _take_report(self, trainer: int, words: np.ndarray) -> None:
        if words[0]:
            self._told = True
        if words[1] and trainer:
            self._unfinished.discard(trainer)
        self.gathered(trainer, words)
