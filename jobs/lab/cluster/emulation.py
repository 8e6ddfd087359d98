"""The emulated parts of a measured job: dense computation is a wait, links are token buckets. How a group's members
compute is in ``emulated_group``.

Everything else is real: ranks, messages, rows, rounds, ``train.hogwild``. Like stopwatches, both stand between a loop
and what it calls.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from ssmpi.bench.harness.loop import AnyTrainer, TrainerView
from ssmpi.bench.harness.stages import ServerEnd
from ssmpi.bench.harness.windows import clock
from ssmpi.runtime.protocols import Arrival, MPIRequest
from ssmpi.runtime.topology import Role
from ssmpi.trainer.worker import WorkerModel, WorkerPace

if TYPE_CHECKING:
    from ssmpi.runtime.mpi.inbox import Inbox

SIZE = 1e-4  # magnitude of a pseudo-gradient's elements: the replica changes slowly


@dataclass(frozen=True)
class Emulation:
    """Seconds of a ``step``; the rate of each PS's link in bytes per second and direction, None if it is not
    limited; ``group_link`` is that of a trainer's, for what members of a group send each other.
    """

    step: float
    sync_link: float | None = None
    embedding_link: float | None = None
    group_link: float | None = None

    def link(self, role: Role) -> float | None:
        """The rate of the link of a server of this role."""
        return self.embedding_link if role is Role.EMBEDDING_PS else self.sync_link


class EmulatedTrainer(TrainerView):
    """A trainer with a core for each of ``threads`` workers, whose models wait. A foreground round prolongs the step of
    the thread that runs it.
    """

    def __init__(self, trainer: AnyTrainer, seconds: float, index: int, threads: int) -> None:
        super().__init__(trainer)
        self._seconds, self._index, self._cores = seconds, index, Cores(threads)
        self._computing = dict[int, Computing]()
        self.pace = ProlongingPace(trainer.pace, self._computing)

    def model_of(self, thread: int) -> WorkerModel:
        """As ``WorkerTrainer``."""
        model, computing, seconds = self._trainer.model_of(thread), self._computing_of(thread), self._seconds
        return WaitingModel(model, model.arrays[1], lambda _: computing.compute(seconds), self._index)

    def _computing_of(self, thread: int) -> Computing:
        computing = self._computing[thread] = Computing(self._cores)
        return computing


class ProlongingPace:
    """A pace whose rounds in the foreground prolong the step of their thread."""

    def __init__(self, pace: WorkerPace, computing: Mapping[int, Computing]) -> None:
        self._inner, self._computing, self.thread_done = pace, computing, pace.thread_done

    def after_step(self, thread: int) -> None:
        """A thread has finished an iteration."""
        began = clock()
        self._inner.after_step(thread)
        self._computing[thread].prolong(clock() - began)


class Cores:
    """The cores of one trainer, which its threads take in turns, first come, first served."""

    def __init__(self, count: int) -> None:
        self._free, self._lock = [-math.inf] * count, threading.Lock()  # when each core is free again

    def take(self, ready: float, seconds: float) -> float:
        """Compute for so long from ``ready`` on, or from when a core is free; returns when that ends."""
        with self._lock:
            core = self._free.index(min(self._free))
            self._free[core] = max(ready, self._free[core]) + seconds
            return self._free[core]


class Computing:
    """A thread whose computation is emulated by waits; it needs one of ``cores`` for each.

    What a thread does in between (reading, routing, recording) is part of the wait. A late wake-up is made up for;
    late rows, late messages and late rounds are not.
    """

    def __init__(
        self, cores: Cores, now: Callable[[], float] = clock, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._cores, self._now, self._sleep = cores, now, sleep
        self._end: float | None = None  # of what it has computed

    def compute(self, seconds: float) -> None:
        """Sleep until it is done."""
        now = self._now()
        due = self._cores.take(now if self._end is None else self._end, seconds)
        self._sleep(max(0.0, due - now))
        self._end = max(due, now)

    def prolong(self, seconds: float) -> None:
        """A foreground round has delayed the thread."""
        if self._end is not None:
            self._end += seconds

    def resume(self) -> None:
        """What the thread has waited for came just now."""
        self._end = self._now()


class WaitingModel:
    """A model that waits instead of computing: ``step(examples)``. ``inner`` is what it stands for, with all its
    ``gradients``, float32 (parameters,), which are pseudo-gradients here.
    """

    def __init__(self, inner: WorkerModel, gradients: np.ndarray, step: Callable[[int], None], trainer: int) -> None:
        self.inner, self.arrays, self._gradients, self._step = inner, inner.arrays, gradients, step
        self._dense = PseudoGradients(gradients.size, trainer)
        self._rows = np.empty((0, 0, 0), np.float32)

    def forward_backward(
        self, dense: np.ndarray, rows: np.ndarray, labels: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Wait, then return logits of 0 (batch,) and constant gradients of rows (batch, features, dim)."""
        if self._rows.shape != rows.shape:
            self._rows = np.full(rows.shape, SIZE, np.float32)
        self._gradients[:] = self._dense.next()
        self._step(len(rows))
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


class Leaving:
    """Acts as the MPI request of a message that begins to leave at ``start`` and has left at ``end``."""

    def __init__(self, start: float, end: float, send: Callable[[], MPIRequest], link: MemberLink) -> None:
        self.start, self.end, self._send, self._link = start, end, send, link
        self._request: MPIRequest | None = None

    def begin(self) -> None:
        """Send it by MPI: its reader's link holds it until its last byte has arrived."""
        self._request = self._send()

    def Test(self) -> bool:  # noqa: N802 - mpi4py's name
        """Whether it has left."""
        self._link.let_go()
        return self._request is not None and self._link.now() >= self.end and bool(self._request.Test())


class MemberEnd(Protocol):
    """What ``comm.mover`` uses of a conversation."""

    def isend(self, array: np.ndarray, dest: int, tag: int) -> MPIRequest:
        """Start sending a contiguous array."""

    def next_arrival(self) -> Arrival | None:
        """The next message from any rank, for the caller to receive; or None."""


class MemberLink:
    """A member's end of its group's conversation behind a link of ``rate`` bytes per second and direction, for its
    mover. Bytes arrive as they leave: a message takes its size / ``rate`` if nothing else is on either end's link.
    """

    NAP = 5e-4  # while it holds something back: a mover whose messages are under way hardly sleeps

    def __init__(
        self,
        inner: MemberEnd,
        rate: float,
        now: Callable[[], float] = clock,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._inner, self._rate, self.now, self._sleep = inner, rate, now, sleep
        self._inwards, self._outwards = Bucket(rate), Bucket(rate)
        self._coming: deque[tuple[float, Arrival]] = deque()
        self._going: deque[Leaving] = deque()

    def isend(self, array: np.ndarray, dest: int, tag: int) -> Leaving:
        """Send when the link has let all before it pass; the array must not change until the request is complete."""
        end = self._outwards.passed(array.nbytes, self.now())
        self._going.append(
            Leaving(end - array.nbytes / self._rate, end, lambda: self._inner.isend(array, dest, tag), self)
        )
        return self._going[-1]

    def next_arrival(self) -> Arrival | None:
        """The next message that the link has let pass."""
        self.let_go()
        while found := self._inner.next_arrival():
            self._coming.append((self._inwards.passed(found.size, self.now()), found))
        if self._coming and self._coming[0][0] <= self.now():
            return self._coming.popleft()[1]
        if self._coming or self._going:
            self._sleep(self.NAP)
        return None

    def let_go(self) -> None:
        """Send what may begin to leave."""
        while self._going and self._going[0].start <= self.now():
            self._going.popleft().begin()
