"""The progress of a trainer's worker threads, each with its own counters, so that counting needs no lock; and an
estimate for all trainers.
"""

from __future__ import annotations

import math
import threading
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ssmpi.model.options import Schedule
from ssmpi.runtime.errors import DIVERGED, TrainingError
from ssmpi.runtime.files import atomic_file
from ssmpi.runtime.mpi.rank_memory import ProcessMemory, RankMemory
from ssmpi.runtime.quality import SUMS, Quality, accumulate, counters


class OtherTrainers(NamedTuple):
    """The other trainers had done ``examples`` when this one had done ``own``, and do ``pace`` more for each of its
    own. The estimate never falls below an earlier one, ``least``.
    """

    own: int
    examples: int
    pace: float
    least: float

    def when(self, own: int) -> float:
        """What they have done when this one has done ``own``, at constant pace."""
        return max(self.least, self.examples + self.pace * max(0, own - self.own))


class ExampleTally:
    """On the dealer: each trainer's examples in this job, as last reported."""

    def __init__(self, trainers: int) -> None:
        self._reported = np.zeros(trainers, np.int64)

    def others(self, trainer: int, examples: int) -> int:
        """Record one trainer's count; returns the sum of the others' last reports."""
        self._reported[trainer] = max(self._reported[trainer], examples)  # messages may overtake each other
        return int(self._reported.sum() - self._reported[trainer])


class Progress:
    """Progressive quality (scores before the update) and counters of one trainer. ``earlier`` examples, of all
    trainers, were trained on by the jobs that this one resumes; ``expected`` is all that there will be.

    The other trainers' examples come with every answer of the dealer (``update_others``); in between, their pace
    relative to this trainer's is assumed constant, and before the first answer equal: ``homes`` trainers read batches.
    What was scored is kept in ``memory``.
    """

    def __init__(
        self, threads: int, homes: int, schedule: Schedule, earlier: int = 0, expected: float = math.inf,
        memory: RankMemory | None = None,
    ) -> None:  # fmt: skip
        memory = memory or ProcessMemory()
        self._schedule, self._earlier, self._expected = schedule, earlier, expected
        self._flat = schedule.flat
        self.cut = 1.0  # factor of the learning rates in this part, because of plateaus
        self._others, self._updating = OtherTrainers(0, 0, homes - 1.0, 0.0), threading.Lock()
        self._sums, self._histograms = counters(memory.array, threads)
        self._slots = list(zip(self._histograms, self._sums, strict=True))  # one for each thread
        self._examples = [0] * threads  # plain numbers: they are added up in every step
        self.losses: list[float] | None = None

    def record(self, thread: int, logits: np.ndarray, labels: np.ndarray) -> None:
        """Add one batch. TrainingError if its loss is not finite."""
        count = len(labels)
        loss = accumulate(logits, labels, *self._slots[thread])
        if not math.isfinite(loss):
            raise TrainingError(
                f"loss is {loss} after {self._examples[thread]:,} examples of this thread: {DIVERGED}; "
                "lower dense.rate and embedding.rate, or set schedule.warmup_examples"
            )
        if self.losses is not None:
            self.losses.append(loss / count)
        self._examples[thread] += count

    def update_others(self, others: int) -> None:
        """Update the estimate of the other trainers' examples from the dealer's answer; it never decreases. Called by
        any thread, once per block or report: the lock is not part of a step.
        """
        with self._updating:
            own = self.examples
            pace = others / own if own else self._others.pace
            self._others = OtherTrainers(own, others, pace, self._others.when(own))

    @property
    def examples(self) -> int:
        """Examples this trainer has trained on."""
        return sum(self._examples)

    @property
    def examples_of_all(self) -> int:
        """Examples of all trainers and earlier jobs: those of other trainers are estimated, so exact where there are
        none.
        """
        own = self.examples
        return int(min(self._earlier + own + int(self._others.when(own)), self._expected))

    def rate_factor(self) -> float:
        """The schedule's present factor of the learning rates: of the next batch that is recorded."""
        return self.cut if self._flat else self.cut * self._schedule.factor(self.examples_of_all)

    def quality(self) -> Quality:
        """The quality of all that this trainer has scored, including earlier processes if its memory survived."""
        return Quality.of(self._sums, self._histograms)

    def add_earlier(self, quality: Quality) -> None:
        """Add what the jobs that this one resumes have scored."""
        self._sums[0] += quality.sums
        self._histograms[0] += quality.histogram

    def save_losses(self, path: Path) -> None:
        """Write the losses, if they are recorded: those of this process and of the checkpoint that it resumes."""
        if self.losses is not None:
            atomic_file.write_array(path, np.array(self.losses))

    @property
    def scored(self) -> np.ndarray:
        """Examples scored by each thread, int64 (threads,), earlier processes included."""
        return self._sums[:, SUMS.index("examples")].astype(np.int64)
