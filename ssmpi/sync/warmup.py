"""Warm-up by synchronous steps, then the chosen algorithm at its pace (post-local SGD; Lin et al., ICLR 2020)::

    g = mean of the dense gradients of all worker threads of all trainers; every replica takes the same step with g

Replicas diverge early, while the learning rate is high; synchronous warm-up prevents that. Embedding rows are updated
by every thread on its own, as afterwards. The warm-up ends after ``warmup_steps`` steps, or with the first part of the
run; the algorithm then begins with the equal replicas. Optimizer state that it keeps elsewhere (``async_ps``) begins
there.
"""

from __future__ import annotations

import numpy as np

from ssmpi.runtime.mpi.rank_memory import PersistedKey
from ssmpi.runtime.protocols import DenseModel, DenseStep
from ssmpi.sync.average import Average
from ssmpi.sync.base import Synchronizer
from ssmpi.sync.pace import Pace
from ssmpi.sync.round_context import NoDenseModel
from ssmpi.sync.thread_barrier import ThreadBarrier


class WarmUp(Pace):
    """Synchronizes all worker threads in each of the first ``steps`` steps, then delegates to ``pace``."""

    def __init__(self, pace: Pace, synchronizer: Synchronizer, steps: int, threads: int) -> None:
        self._pace, self._synchronizer = pace, synchronizer
        self._left, self._threads = steps, threads
        size = synchronizer.weights.size + 1
        context = synchronizer.context
        self._average, self._sum = Average(context.replicas, context.waiting, size), np.zeros(size, np.float32)
        self._meeting, self._came = ThreadBarrier(), 0
        self._gone: list[int] = []
        self._thread_model: DenseModel = NoDenseModel()

    @property
    def over(self) -> bool:
        """Whether the warm-up is over; the same on all trainers."""
        return not self._left

    def begin(self) -> None:
        """Expect all threads."""
        if self.over:
            self._pace.begin()
        else:
            self._thread_model = self._synchronizer.context.local.thread_model()
            self._meeting.open(self._threads)

    def after_step(self, thread: int) -> None:
        """Rounds begin when the warm-up is over."""
        if self.over:
            self._pace.after_step(thread)

    def thread_done(self, thread: int) -> None:
        """The others need not wait for this thread."""
        if self.over:
            self._pace.thread_done(thread)
        else:
            self._gone.append(thread)
            self._meeting.leave(self._take)

    def end(self) -> None:
        """Take the other trainers' steps to the end of the warm-up."""
        while not self.over:
            self._take()
        self._pace.end()

    def optimizer(self, own: DenseStep) -> DenseStep:
        """Common steps first, then those of ``own``."""
        return WarmUpStep(self, own)

    def step(self, model: DenseModel, factor: float) -> None:
        """One thread's gradients; returns when the common step is taken."""
        self._meeting.pause_if(lambda: self._add(model, factor), self._take)

    def _add(self, model: DenseModel, factor: float) -> bool:
        self._sum[:-1] += model.arrays[1]
        self._sum[-1] += factor
        self._came += 1
        return True

    def _take(self) -> None:
        """The common step of all trainers, taken by the last thread to arrive."""
        mean = self._average.of(self._sum / np.float32(max(self._came, 1)), self._came)
        self._sum[:], self._came = 0.0, 0
        if mean is not None:
            self._thread_model.arrays[1][:] = mean[:-1]
            self._synchronizer.context.local.optimizer.step(self._thread_model, float(mean[-1]))
        self._left = self._left - 1 if mean is not None else 0
        if self.over:
            self._synchronizer.restart()
            self._synchronizer.context.local.memory.note(PersistedKey.WARMED_UP, True)
            self._pace.begin()
            for thread in self._gone:
                self._pace.thread_done(thread)


class WarmUpStep:
    """The warm-up as a ``DenseStep``."""

    def __init__(self, warm_up: WarmUp, own: DenseStep) -> None:
        self._warm_up, self._own = warm_up, own

    def step(self, model: DenseModel, factor: float) -> None:
        """One step, common or by the own optimizer."""
        (self._own if self._warm_up.over else self._warm_up).step(model, factor)
