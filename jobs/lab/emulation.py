"""The emulated parts of a measured job, and its ranks: dense computation is a wait, sync PSs' links are token buckets.

Everything else is real: ranks, messages, rows, rounds, ``train.hogwild``. Like stopwatches, both stand between a loop
and what it calls.

* **A step is a wait** of so many seconds, the host's own work for it (reading, routing, recording) included: on a node
  of its own it would have a core. A late wake-up is made up for; rows that arrive late and rounds in the foreground add
  to the step. Gradients are small, so replicas move apart slowly.
* **A link is a token bucket for each direction**, without depth: a message counts as arrived, and a reply as sent, when
  its last byte would have passed. It is wrapped around the conversation; the serve loop knows nothing of it. Links of
  trainers are not limited: all-reduces run at the speed of this host's memory.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ssmpi.bench import rank
from ssmpi.bench.loop import TrainerView
from ssmpi.bench.stages import ServedThrough, ServerEnd
from ssmpi.bench.windows import clock
from ssmpi.runtime.mpi.messages import Conversation
from ssmpi.runtime.protocols import MPIRequest
from ssmpi.runtime.topology import Role

if TYPE_CHECKING:
    from ssmpi.bench.jobs import Task
    from ssmpi.model.replica import ThreadModel
    from ssmpi.runtime.mpi.inbox import Inbox
    from ssmpi.runtime.mpi.world import MakeConversation
    from ssmpi.sync import Pace
    from ssmpi.trainer.trainer import Trainer

CHECKOUT = Path(__file__).parents[2]
START = "-c", f"import sys; sys.path.insert(0, {str(CHECKOUT)!r}); from jobs.lab import emulation; emulation.main()"
SIZE = 1e-4  # magnitude of a pseudo-gradient's elements: the replica changes slowly


@dataclass(frozen=True)
class Emulation:
    """Seconds of a ``step``; the rate of each sync PS's link in bytes per second and direction."""

    step: float
    sync_link: float


class Emulated(rank.Measured):
    """A rank of an emulated cluster."""

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self._emulation = Emulation(**task.more)

    def conversations(self, role: Role) -> MakeConversation:
        """As ``Measured``."""
        if role is not Role.SYNC_PS:
            return Conversation
        return partial(ServedThrough, partial(LimitedLink, rate=self._emulation.sync_link))

    def view(self, trainer: Trainer) -> TrainerView:
        """As ``Measured``."""
        return EmulatedTrainer(trainer, self._emulation.step, trainer.world.index)


def main() -> None:
    """Run a rank."""
    rank.run(Emulated)


class EmulatedTrainer(TrainerView):
    """A trainer with a core for each worker, whose models wait. A foreground round prolongs the step of the thread that
    runs it.
    """

    def __init__(self, trainer: Trainer, seconds: float, index: int) -> None:
        super().__init__(trainer)
        self._seconds, self._index = seconds, index
        self._computing = dict[int, Computing]()
        self.pace = ProlongingPace(trainer.pace, self._computing)

    def model_of(self, thread: int) -> WaitingModel:
        """As ``Trainer``."""
        computing = self._computing[thread] = Computing(self._seconds)
        return WaitingModel(self._trainer.model_of(thread), computing, self._index)


class ProlongingPace:
    """A pace whose rounds in the foreground prolong the step of their thread."""

    def __init__(self, pace: Pace, computing: Mapping[int, Computing]) -> None:
        self._inner, self._computing, self.thread_done = pace, computing, pace.thread_done

    def after_step(self, thread: int) -> None:
        """A thread has finished an iteration."""
        began = clock()
        self._inner.after_step(thread)
        self._computing[thread].prolong(clock() - began)


class Computing:
    """A thread whose steps are waits of so many ``seconds``. What it does in between (reading, routing, recording) is
    part of the wait. A late wake-up is made up for; late rows and late rounds are not.
    """

    def __init__(
        self, seconds: float, now: Callable[[], float] = clock, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._seconds, self._now, self._sleep = seconds, now, sleep
        self._end: float | None = None  # of its last step

    def step(self) -> None:
        """Sleep until a step is done."""
        now = self._now()
        due = (now if self._end is None else self._end) + self._seconds
        self._sleep(max(0.0, due - now))
        self._end = max(due, now)

    def prolong(self, seconds: float) -> None:
        """A foreground round has delayed the thread."""
        if self._end is not None:
            self._end += seconds


class WaitingModel:
    """A model that waits instead of computing. Its gradients are pseudo-gradients."""

    def __init__(self, inner: ThreadModel, computing: Computing, trainer: int) -> None:
        self.arrays, self._computing = inner.arrays, computing
        self._dense = PseudoGradients(self.arrays[1].size, trainer)
        self._rows = np.empty((0, 0, 0), np.float32)

    def forward_backward(
        self, dense: np.ndarray, rows: np.ndarray, labels: np.ndarray, first_example: int = 0
    ) -> tuple[np.ndarray, np.ndarray]:
        """Wait, then return logits of 0 (batch,) and constant gradients of rows (batch, features, dim)."""
        if self._rows.shape != rows.shape:
            self._rows = np.full(rows.shape, SIZE, np.float32)
        self.arrays[1][:] = self._dense.next()
        self._computing.step()
        return np.zeros(len(rows), np.float32), self._rows


class PseudoGradients:
    """What a trainer steps by: small normal numbers, others in each step, or what a codec holds back would grow in one
    direction and soon pass its threshold. They are parts of one array, which costs next to nothing.
    """

    def __init__(self, size: int, trainer: int) -> None:
        self._size, self._random = size, np.random.default_rng(trainer)
        self._numbers = self._random.normal(scale=SIZE, size=2 * size).astype(np.float32)

    def next(self) -> np.ndarray:
        """Those of the next step, float32 (size,)."""
        start = int(self._random.integers(self._size + 1))
        return self._numbers[start : start + self._size]


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
