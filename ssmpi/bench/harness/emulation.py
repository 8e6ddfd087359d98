"""The emulated parts of a job of ``ssmpi bench cluster``: dense computation is a wait, servers' links are token
buckets.

Everything else is real: ranks, messages, rows, rounds, ``train.hogwild``. Like stopwatches, both wrap the objects that
``train.py`` works with.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ssmpi.bench.harness import links
from ssmpi.bench.harness.windows import clock
from ssmpi.core.topology import Role
from ssmpi.sync.pace import Pace

if TYPE_CHECKING:
    from ssmpi.comm.world import World
    from ssmpi.model.replica import ThreadModel
    from ssmpi.roles.trainer import Trainer

SIZE = 1e-4  # magnitude of a pseudo-gradient's elements: the replica changes slowly


@dataclass(frozen=True)
class Emulation:
    """Seconds of a ``step``; the rate of each PS's link in bytes per second and direction, None if it is not
    limited.
    """

    step: float
    sync_link: float | None = None
    embedding_link: float | None = None

    def limit_links(self, world: World) -> None:
        """Limit a server's links; call before it serves."""
        rate = self.embedding_link if world.role is Role.EMBEDDING_PS else self.sync_link
        if rate is not None:
            links.limit(world.embedding if world.role is Role.EMBEDDING_PS else world.center, rate)

    def replace_dense(self, trainer: Trainer) -> None:
        """Make each worker's model wait; call before the trainer trains. A foreground round prolongs the step of the
        thread that runs it.
        """
        made, steps = trainer.replica.thread_model, threading.local()
        trainer.pace = ProlongingPace(trainer.pace, steps)

        def waiting_model(*vector: np.ndarray) -> WaitingModel:
            steps.own = EmulatedStep(self.step)
            return WaitingModel(made(*vector), steps.own, trainer.world.index)

        trainer.replica.thread_model = waiting_model  # type: ignore


class ProlongingPace:
    """A pace whose rounds in the foreground prolong the step of their thread, ``steps.own``."""

    def __init__(self, pace: Pace, steps: threading.local) -> None:
        self._inner, self._steps = pace, steps
        self.begin, self.thread_done, self.end, self.optimizer = pace.begin, pace.thread_done, pace.end, pace.optimizer

    def after_step(self, thread: int) -> None:
        """A worker thread has finished an iteration."""
        began = clock()
        self._inner.after_step(thread)
        self._steps.own.prolong(clock() - began)


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

    def __init__(self, model: ThreadModel, step: EmulatedStep, trainer: int) -> None:
        self.weights, self.gradients, self.arrays, self._step = model.weights, model.gradients, model.arrays, step
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
