"""The control conversation: the first trainer's main thread deals row blocks, gathers reports, passes on a stop, and
says when training pauses. Each request and report also carries how many examples its trainer has done; each answer, how
many the others have.

Training shards are verified against their checksums, once per run, in the background of training: every trainer a
share, on one low-priority thread. The dealer deals no row of a shard before its check is done.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Iterable, Set
from typing import TYPE_CHECKING

import numpy as np

from ssmpi.data.block_dispatcher import NOT_YET, PAUSED, BlockDispatcher
from ssmpi.runtime.mpi.service import Service
from ssmpi.runtime.mpi.waiting import WaitOptions, wait_all, wait_until
from ssmpi.runtime.protocols import MPIRequest
from ssmpi.runtime.stop import Stop
from ssmpi.state.checkpoint.pending_save import NICENESS
from ssmpi.trainer.metrics.trainer_report import TrainerReport
from ssmpi.trainer.progress import ExampleTally, Progress

if TYPE_CHECKING:
    from ssmpi.data.reader import SplitReader
    from ssmpi.runtime.mpi.messages import Conversation

REPORT = 1000  # tag of a report and of its answer
PART_ENDS = 1001  # tag of the first trainer's only message in each part: 1, pause now; or 0, the part is done
# 1002 is ``checkpoint.pending_save.SAVED``
CHECKED = 1003  # tag of the number of a shard whose contents are intact; no answer
BLOCK_REQUEST = 2000  # plus the thread's number: tag of a request for a block; the answer has the thread's number alone
REPORT_SECONDS = 1.0
EARLY = 0.1  # reports are at most this share of the job's training apart, so that a short job has a curve too


class Control:
    """One trainer's end. ``gathered(trainer, report)`` is called on the first trainer for every report, ``due()`` there
    to ask whether a checkpoint is due.

    Worker threads call ``next_block``; the main thread calls ``tick`` while they train. ``checked`` are the shards
    whose contents are known to be intact: on the first trainer all of them, because it deals the blocks.
    """

    def __init__(
        self, conversation: Conversation, threads: int, waiting: WaitOptions, progress: Progress, stop: Stop,
        checked: set[int],
    ) -> None:  # fmt: skip
        self._conversation, self._threads, self._waiting, self._stop = conversation, threads, waiting, stop
        self._checked, self._progress, self._tally = checked, progress, ExampleTally(conversation.size)
        self._service = Service(conversation) if conversation.rank == 0 else None
        self._answer = np.zeros(2, np.int64)
        self._pending: list[MPIRequest] = []
        self._outgoing: np.ndarray | None = None
        self._last, self._began = 0.0, math.inf
        self._unfinished: set[int] = set()
        self.dispatcher: BlockDispatcher | None = None
        self.gathered: Callable[[int, TrainerReport], None] = lambda trainer, report: None
        self.due: Callable[[], bool] = lambda: False
        self._checked_sends: list[tuple[MPIRequest, np.ndarray]] = []
        self._announced = False  # on the first trainer: whether the end of this part was announced
        self._pause = np.zeros(1, np.int64)  # the message of PART_ENDS
        self._part_ends: list[MPIRequest] = []  # its requests

    def begin(self, dispatcher: BlockDispatcher) -> None:
        """Training starts, or continues after a pause: deal from ``dispatcher`` (only the first trainer's is used)."""
        self.dispatcher = dispatcher
        self._unfinished = set(range(self._conversation.size))
        self._stop.resume()
        self._announced = False
        if not self._service:
            self._part_ends = [self._conversation.irecv(self._pause, 0, PART_ENDS)]
        self._last = time.monotonic()
        self._began = min(self._began, self._last)

    def next_block(self, thread: int) -> int:
        """The next row block for one worker thread, or NOTHING_LEFT, or PAUSED. Called on that thread."""
        asker = np.array([self._conversation.rank * self._threads + thread, self._progress.examples], np.int64)
        answer = np.empty(2, np.int64)

        def ask() -> bool:
            requests = [
                self._conversation.irecv(answer, 0, thread),
                self._conversation.isend(asker, 0, BLOCK_REQUEST + thread),
            ]
            wait_all(requests, self._waiting, "trainer 0 (to deal a row block)")
            return bool(answer[0] != NOT_YET)

        wait_until(ask, self._waiting, "the trainer that checks the next shard of the data")
        block, others = map(int, answer)
        self._progress.update_others(others)
        if block == PAUSED:  # the message to all may still be in flight
            self._stop.pause()
        return block

    def tell_checked(self, shard: int) -> None:
        """Tell the dealer that the contents of a shard are intact. Called on the checking thread."""
        message = np.array([shard], np.int64)
        self._checked_sends = [send for send in self._checked_sends if not send[0].Test()]
        self._checked_sends.append((self._conversation.isend(message, 0, CHECKED), message))

    def tick(self, report: Callable[[bool], TrainerReport], *, finished: bool = False) -> bool:
        """Answer messages and send reports when due; True once the others do not need this trainer any more.
        ``report(finished)`` is called when a report of this trainer is due.
        """
        self._take_arrived()
        if self._service:
            self._service.answer_pending(self._handle)
            if self._stop.stopping or self.due():
                self._announce(pause=True)
        elif not self._part_ends and self._pause[0]:
            self._stop.pause()
        mine = self._conversation.rank in self._unfinished
        now = time.monotonic()
        due = min(REPORT_SECONDS, EARLY * (now - self._began))
        if not self._pending and mine and (finished or now - self._last > due):
            self._last = now
            self._send(report(finished))
            if finished:
                self._unfinished.discard(self._conversation.rank)
        if self._service:
            if not self._unfinished:
                self._announce(pause=False)
            return not self._unfinished and not self._part_ends
        mine = self._conversation.rank in self._unfinished
        return finished and not mine and not self._pending and not self._part_ends

    def _announce(self, *, pause: bool) -> None:
        """On the first trainer, once in a part: tell all trainers to pause, or that the part is done."""
        if self._announced:
            return
        self._announced, self._pause[0] = True, pause
        if pause:
            self._stop.pause()
        others = range(1, self._conversation.size)
        self._part_ends = [self._conversation.isend(self._pause, trainer, PART_ENDS) for trainer in others]

    def _send(self, report: TrainerReport) -> None:
        if self._service:
            self._progress.update_others(self._take_report(0, report))
            return
        self._outgoing = report.pack()
        self._pending = [
            self._conversation.irecv(self._answer, 0, REPORT),
            self._conversation.isend(self._outgoing, 0, REPORT),
        ]

    def _take_arrived(self) -> None:
        """Take the end of this part, if it has arrived here or, on the first trainer, everywhere; and the answer to the
        last report.
        """
        self._part_ends = [request for request in self._part_ends if not request.Test()]
        self._pending = [request for request in self._pending if not request.Test()]
        if not self._pending and self._outgoing is not None:
            self._outgoing = None
            self._progress.update_others(int(self._answer[1]))
            if self._answer[0]:
                self._stop.request()

    def _handle(self, source: int, tag: int, payload: np.ndarray) -> None:
        """On the first trainer: answer one message."""
        assert self._service
        if tag == CHECKED:
            self._checked.add(int(payload.view(np.int64)[0]))
            return
        buffer = self._service.buffer(16)
        if tag == REPORT:
            others = self._take_report(source, TrainerReport.unpack(payload.view(np.float64).copy()))
            buffer.view(np.int64)[:] = self._stop.stopping, others
        else:
            assert self.dispatcher
            asker, examples = map(int, payload.view(np.int64))
            block = PAUSED if self._stop.must_pause() else self.dispatcher.next_block(asker)
            buffer.view(np.int64)[:] = block, self._tally.others(source, examples)
        self._service.reply(source, tag if tag == REPORT else tag - BLOCK_REQUEST, buffer)

    def _take_report(self, trainer: int, report: TrainerReport) -> int:
        """Handle one trainer's report; returns how many examples the others have done."""
        if report.stop:
            self._stop.request()
        if report.finished and trainer:
            self._unfinished.discard(trainer)
        self.gathered(trainer, report)
        return self._tally.others(trainer, int(report.examples))


def share(needed: Iterable[int], checked: Set[int], trainer: int, trainers: int) -> list[int]:
    """The shards that one of ``trainers`` checks, out of those ``needed``, given and returned in the order of need."""
    return [shard for shard in dict.fromkeys(needed) if shard not in checked][trainer::trainers]


def check(reader: SplitReader, shards: Iterable[int], told: Callable[[int], None]) -> None:
    """The body of the thread; ``told`` is called with every intact shard. DataError for the first damaged one. Reads
    are few and large: small ones starve beside busy Python threads.
    """
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
    for shard in shards:
        reader.verify(shard)
        told(shard)
