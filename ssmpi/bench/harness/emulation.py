"""The emulated parts of a job of ``ssmpi bench cluster``: dense computation is a wait, servers' links are token
buckets.

Everything else is real: ranks, messages, rows, rounds, ``train.hogwild``. Like stopwatches, both stand between a loop
and what it calls.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ssmpi.bench.harness.loop import TrainerView
from ssmpi.bench.harness.stages import ServerEnd
from ssmpi.bench.harness.windows import clock
from ssmpi.core.protocols import MPIRequest
from ssmpi.core.topology import Role
from ssmpi.roles.worker import WorkerModel, WorkerPace, WorkerTrainer

if TYPE_CHECKING:
    from ssmpi.comm.inbox import Inbox

SIZE = 1e-4  # magnitude of a pseudo-gradient's elements: the replica changes slowly


@dataclass(frozen=True)
class Emulation:
    """Seconds of a ``step``; the rate of each PS's link in bytes per second and direction, None if it is not
    limited.
    """

    step: float
    sync_link: float | None = None
    embedding_link: float | None = None

    def link(self, role: Role) -> float | None:
        """The rate of the link of a server of this role."""
        return self.embedding_link if role is Role.EMBEDDING_PS else self.sync_link


class EmulatedTrainer(TrainerView):
    """A trainer whose workers' models wait. A foreground round prolongs the step of the thread that runs it."""

    def __init__(self, trainer: WorkerTrainer, seconds: float, index: int) -> None:
        super().__init__(trainer)
        self._seconds, self._index, self._steps = seconds, index, dict[int, EmulatedStep]()
        self.pace = ProlongingPace(trainer.pace, self._steps)

    def model_of(self, thread: int) -> WorkerModel:
        """As ``WorkerTrainer``."""
        self._steps[thread] = EmulatedStep(self._seconds)
        return WaitingModel(super().model_of(thread), self._steps[thread], self._index)


class ProlongingPace:
    """A pace whose rounds in the foreground prolong the step of their thread."""

    def __init__(self, pace: WorkerPace, steps: Mapping[int, EmulatedStep]) -> None:
        self._inner, self._steps, self.thread_done = pace, steps, pace.thread_done

    def after_step(self, thread: int) -> None:
        """A worker thread has finished an iteration."""
        began = clock()
        self._inner.after_step(thread)
        self._steps[thread].prolong(clock() - began)


class EmulatedStep:
    """The end of an emulated dense computation: ``seconds`` after the previous one, plus the time of other delays.

    The host's time for the rest of a step (reading, routing, recording) is part of the wait. A late wake-up is made up
    for in the next step; late rows or a late round are not.
    """

    def __init__(
        self, seconds: float, now: Callable[[], float] = clock, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._seconds, self._now, self._sleep = seconds, now, sleep
        self._end: float | None = None

    def wait(self) -> None:
        """Sleep until the end of this step's dense computation."""
        now = self._now()
        due = now if self._end is None else self._end + self._seconds
        self._sleep(max(0.0, due - now))
        self._end = max(due, now)

    def prolong(self, seconds: float) -> None:
        """A foreground round has delayed the thread."""
        if self._end is not None:
            self._end += seconds


class WaitingModel:
    """A model that waits instead of computing. Its small pseudo-gradients are constant and differ between trainers."""

    def __init__(self, model: WorkerModel, step: EmulatedStep, trainer: int) -> None:
        self.arrays, self._step = model.arrays, step
        generator = np.random.default_rng(trainer)
        self._dense = generator.normal(scale=SIZE, size=self.arrays[1].shape).astype(np.float32)
        self._rows = np.empty((0, 0, 0), np.float32)

    def forward_backward(
        self, dense: np.ndarray, rows: np.ndarray, labels: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Wait, then return logits of 0 (batch,) and constant gradients (batch, features, dim)."""
        if self._rows.shape != rows.shape:
            self._rows = np.full(rows.shape, SIZE, np.float32)
        self.arrays[1][:] = self._dense
        self._step.wait()
        return np.zeros(len(rows), np.float32), self._rows


class Bucket:
    """Transmits messages in order at ``rate`` bytes per second; idle time is not saved up, as on a link. Times are
    seconds of any one clock.
    """

    def __init__(self, rate: float) -> None:
        self._rate, self._free = rate, 0.0

    def passed(self, size: int, now: float) -> float:
        """The time at which a message of ``size`` bytes that arrives ``now`` has passed."""
        self._free = max(self._free, now) + size / self._rate
        return self._free


class DelayedReply:
    """Acts as the MPI request of a reply that is sent when the link has let it pass, at ``due``."""

    def __init__(self, due: float, send: Callable[[], MPIRequest], let_go: Callable[[], None]) -> None:
        self.due, self._send, self._let_go = due, send, let_go
        self._request: MPIRequest | None = None

    def start(self) -> None:
        """Send it by MPI: the link has let it pass."""
        self._request = self._send()

    def Test(self) -> bool:  # noqa: N802 - mpi4py's name
        """Whether the reply has been sent."""
        self._let_go()
        return self._request is not None and bool(self._request.Test())


class LimitedLink:
    """A server's end of a conversation behind a link of ``rate`` bytes per second and direction. The server's loop is
    unchanged: a message comes when its last byte would have arrived, and MPI starts to send a reply when its last byte
    would have left.
    """

    def __init__(self, inner: ServerEnd, rate: float, now: Callable[[], float] = clock) -> None:
        self._inner, self._now = inner, now
        self._inwards, self._outwards = Bucket(rate), Bucket(rate)
        self._coming: deque[tuple[float, int, int, np.ndarray]] = deque()
        self._going: deque[DelayedReply] = deque()

    def next_message(self, inbox: Inbox) -> tuple[int, int, np.ndarray] | None:
        """The next message that the link has let pass."""
        self._let_go()
        while (found := self._inner.next_message(inbox)) is not None:
            source, tag, payload = found
            self._coming.append((self._inwards.passed(payload.size, self._now()), source, tag, payload.copy()))
        if not self._coming or self._coming[0][0] > self._now():
            return None
        return self._coming.popleft()[1:]

    def isend(self, array: np.ndarray, dest: int, tag: int) -> DelayedReply:
        """Send when the link has let it pass; the array must not change until the request is complete."""
        due = self._outwards.passed(array.nbytes, self._now())
        reply = DelayedReply(due, lambda: self._inner.isend(array, dest, tag), self._let_go)
        self._going.append(reply)
        return reply

    def _let_go(self) -> None:
        while self._going and self._going[0].due <= self._now():
            self._going.popleft().start()
