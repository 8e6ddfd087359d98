"""The control conversation: the first trainer's main thread deals row blocks, gathers reports, passes on a stop, and says
when training pauses. Who asks or reports also tells how many examples its trainer has done, and hears those of the others.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from ssmpi.comm.service import Service
from ssmpi.comm.signals import stop_asked
from ssmpi.comm.waiting import Patience, wait_all, wait_until
from ssmpi.core.metrics import BINS, SUMS
from ssmpi.data.block_dispatcher import CUT, NOT_YET, Handout
from ssmpi.roles.progress import Progress, Tally

if TYPE_CHECKING:
    from ssmpi.comm.messages import Conversation

REPORT = 1000  # tag of a report and of its answer
WORD = 1001  # tag of the one word in each part: whether all pause now, or the part is done
SAVED = 1002  # tag of what became of a trainer's files of a checkpoint; see ``writing``
CHECKED = 1003  # tag of the number of a shard whose contents are sound; no answer
WANT = 2000  # plus the thread's number: tag of a request for a block; the answer has the thread's number alone
HEADER = ("stop", "finished", "examples", "iterations", "rounds", "round_seconds", "staleness", "divergence")
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

    Worker threads call ``next_block``; the main thread calls ``tick`` while they train. ``checked`` are the shards whose
    contents are known to be sound: on the first trainer all of them, for its dealing.
    """

    def __init__(self, conversation: Conversation, threads: int, patience: Patience, progress: Progress) -> None:
        self._conversation, self._threads, self._patience = conversation, threads, patience
        self._progress, self._tally = progress, Tally(conversation.size)
        self._service = Service(conversation, patience) if conversation.rank == 0 else None
        self._answer = np.zeros(2, np.int64)
        self._pending: list[Any] = []
        self._outgoing: np.ndarray | None = None
        self._last = 0.0
        self._unfinished: set[int] = set()
        self.handout: Handout | None = None
        self.gathered: Callable[[int, np.ndarray], None] = lambda trainer, words: None
        self.due: Callable[[], bool] = lambda: False
        self.checked: set[int] = set()
        self._tellings: list[tuple[Any, np.ndarray]] = []
        self._told = self._cut = self._said = False
        self._word = np.zeros(1, np.int64)
        self._words: list[Any] = []

    @property
    def stopping(self) -> bool:
        """Whether somebody asked this trainer to stop, or any trainer and the word has come here."""
        return self._told or stop_asked()

    @property
    def pausing(self) -> bool:
        """Whether this trainer's threads are to come to rest between two batches: for a checkpoint, or to stop."""
        return self._cut or self.stopping

    def begin(self, handout: Handout) -> None:
        """Training starts, or goes on after a pause: deal from ``handout`` (only the first trainer's counts)."""
        self.handout = handout
        self._unfinished = set(range(self._conversation.size))
        self._cut = self._said = False
        if not self._service:
            self._words = [self._conversation.irecv(self._word, 0, WORD)]
        self._last = time.monotonic()

    def next_block(self, thread: int) -> int:
        """The next row block for one worker thread, or NOTHING_LEFT, or CUT. Called on that thread."""
        asker = np.array([self._conversation.rank * self._threads + thread, self._progress.examples], np.int64)
        answer = np.empty(2, np.int64)

        def ask() -> bool:
            requests = [
                self._conversation.irecv(answer, 0, thread),
                self._conversation.isend(asker, 0, WANT + thread),
            ]
            wait_all(requests, self._patience, "trainer 0 (to deal a row block)")
            return bool(answer[0] != NOT_YET)

        wait_until(ask, self._patience, "the trainer that checks the next shard of the data")
        block, others = map(int, answer)
        self._progress.hear(others)
        if block == CUT:  # the word for all may still be on its way
            self._cut = True
        return block

    def tell_checked(self, shard: int) -> None:
        """Tell the dealer that the contents of a shard are sound. Called on the thread that checks."""
        word = np.array([shard], np.int64)
        self._tellings = [telling for telling in self._tellings if not telling[0].Test()]
        self._tellings.append((self._conversation.isend(word, 0, CHECKED), word))

    def tick(self, report: Callable[[bool], np.ndarray], *, finished: bool = False) -> bool:
        """Answer and report where it is time; True once this trainer need not stay for the others.

        ``report(finished)`` makes this trainer's report and starts the next one from zero.
        """
        if self._service:
            self._service.answer_waiting(self._handle)
            if self.stopping or self.due():
                self._tell_all(pause=True)
        elif self._words and self._heard():
            self._cut = self._cut or bool(self._word[0])
        mine = self._conversation.rank in self._unfinished
        if not self._report_under_way() and mine and (finished or time.monotonic() - self._last > REPORT_SECONDS):
            self._last = time.monotonic()
            self._send(report(finished))
            if finished:
                self._unfinished.discard(self._conversation.rank)
        if self._service:
            if not self._unfinished:
                self._tell_all(pause=False)
            return not self._unfinished and self._heard()
        free = finished and self._conversation.rank not in self._unfinished and not self._report_under_way()
        return free and self._heard()

    def _tell_all(self, *, pause: bool) -> None:
        """On the first trainer, once in a part: the threads of all trainers come to rest now, or need not."""
        if self._said:
            return
        self._said, self._cut, self._word[0] = True, pause, pause
        others = range(1, self._conversation.size)
        self._words = [self._conversation.isend(self._word, trainer, WORD) for trainer in others]

    def _heard(self) -> bool:
        """Whether the word of this part has arrived, here or, from the first trainer, everywhere."""
        self._words = [request for request in self._words if not request.Test()]
        return not self._words

    def _send(self, words: np.ndarray) -> None:
        if self._service:
            self._progress.hear(self._take_report(0, words))
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
            self._progress.hear(int(self._answer[1]))
            if self._answer[0]:
                self._told = True
        return bool(self._pending)

    def _handle(self, source: int, tag: int, payload: np.ndarray) -> None:
        """On the first trainer: answer one message."""
        assert self._service
        if tag == CHECKED:
            self.checked.add(int(payload.view(np.int64)[0]))
            return
        buffer = self._service.buffer(16)
        if tag == REPORT:
            others = self._take_report(source, payload.view(np.float64).copy())
            buffer.view(np.int64)[:] = self.stopping, others
        else:
            assert self.handout
            asker, examples = map(int, payload.view(np.int64))
            block = CUT if self.pausing else self.handout.next_block(asker)
            buffer.view(np.int64)[:] = block, self._tally.others(source, examples)
        self._service.reply(source, tag if tag == REPORT else tag - WANT, buffer)

    def _take_report(self, trainer: int, words: np.ndarray) -> int:
        """Take one trainer's report; how many examples the others have done."""
        if words[0]:
            self._told = True
        if words[1] and trainer:
            self._unfinished.discard(trainer)
        self.gathered(trainer, words)
        return self._tally.others(trainer, int(words[HEADER.index("examples")]))
