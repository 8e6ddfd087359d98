"""What a trainer's worker threads have done so far, each in slots of its own, so that counting needs no lock."""

from __future__ import annotations

import math
import time

import numpy as np

from ssmpi.errors import TrainingError
from ssmpi.metrics import BINS, SUMS, accumulate
from ssmpi.model.options import Schedule


class Progress:
    """Progressive quality (scores before the update) and counters of one trainer. ``earlier`` examples, of all trainers,
    were trained on by the jobs that this one goes on from.
    """

    def __init__(self, threads: int, trainers: int, schedule: Schedule, earlier: int = 0) -> None:
        self._trainers, self._schedule, self._earlier = trainers, schedule, earlier
        self._sums = np.zeros((threads, len(SUMS)))
        self._histograms = np.zeros((threads, 2, BINS), np.int64)
        self._slots = list(zip(self._histograms, self._sums, strict=True))  # each thread's
        self._reported_sums = np.zeros(len(SUMS))
        self._reported_histogram = np.zeros((2, BINS), np.int64)
        self._examples = [0] * threads  # plain numbers: they are added up in every step
        self.iterations = np.zeros(threads, np.int64)
        self.losses: list[float] | None = None

    def record(self, thread: int, logits: np.ndarray, labels: np.ndarray) -> float:
        """Count one batch; returns the learning-rate factor of its update. TrainingError if its loss is not finite."""
        loss = accumulate(logits, labels, *self._slots[thread])
        if not math.isfinite(loss):
            raise TrainingError(
                f"loss is {loss} at iteration {int(self.iterations[thread]) + 1:,} of this thread: training has "
                "diverged; lower dense.rate and embedding.rate, or set schedule.warmup_examples"
            )
        if self.losses is not None:
            self.losses.append(loss / len(labels))
        self.iterations[thread] += 1
        self._examples[thread] += len(labels)
        return self._schedule.factor(self.of_all - len(labels) * self._trainers)

    @property
    def examples(self) -> int:
        """Examples this trainer has trained on, the batch being recorded included."""
        return sum(self._examples)

    @property
    def of_all(self) -> int:
        """Examples of all trainers and earlier jobs, about: what this trainer has done times their number."""
        return self._earlier + self.examples * self._trainers

    def factor(self) -> float:
        """What the learning rates are multiplied by now."""
        return self._schedule.factor(self.of_all)

    def since_last(self) -> tuple[np.ndarray, np.ndarray]:
        """Sums (5,) and histogram (2, BINS) since the last call."""
        sums, histogram = self._sums.sum(axis=0), self._histograms.sum(axis=0)
        news = sums - self._reported_sums, histogram - self._reported_histogram
        self._reported_sums, self._reported_histogram = sums, histogram
        return news


class Clock:
    """Wall seconds since it was made."""

    def __init__(self) -> None:
        self._began = time.monotonic()

    @property
    def wall(self) -> float:
        """Wall seconds."""
        return time.monotonic() - self._began
