"""What a worker thread, ``train.hogwild``, uses of its trainer. A benchmark may give the thread another object, which
measures or replaces what the loop calls.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import numpy as np

from ssmpi.data.batch import Batch
from ssmpi.embedding.client import Lookups
from ssmpi.runtime.protocols import DenseModel, DenseStep


class WorkerModel(DenseModel, Protocol):
    """The network over shared weights, with the thread's own gradients."""

    def forward_backward(
        self, dense: np.ndarray, rows: np.ndarray, labels: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Logits float32 (batch,) and the gradients of the rows, float32 (batch, features, width)."""


class WorkerProgress(Protocol):
    """The trainer's counters."""

    def rate_factor(self) -> float:
        """The factor of the learning rates now."""

    def record(self, thread: int, logits: np.ndarray, labels: np.ndarray) -> None:
        """Count one batch of a thread."""


class WorkerPace(Protocol):
    """When rounds run."""

    def after_step(self, thread: int) -> None:
        """A worker thread has finished an iteration."""

    def thread_done(self, thread: int) -> None:
        """A worker thread has no more data in this part of the run."""


class WorkerTrainer(Protocol):
    """The trainer."""

    @property
    def progress(self) -> WorkerProgress:
        """Its counters."""

    @property
    def pace(self) -> WorkerPace:
        """Its rounds."""

    def model_of(self, thread: int) -> WorkerModel:
        """The network, with gradients of the thread's own."""

    def lookups(self, thread: int) -> Lookups:
        """The thread's pull and push of embedding rows."""

    def optimizer_of(self, thread: int) -> DenseStep:
        """The thread's optimizer."""

    def stream(self, thread: int) -> Iterator[Batch]:
        """The thread's batches."""


class HelperSteps(Protocol):
    """What this trainer computes of another member's lane."""

    @property
    def arrays(self) -> tuple[np.ndarray, np.ndarray]:
        """Weights and gradients of what this trainer owns, float32."""

    def steps(self) -> Iterator[float]:
        """Compute the lane's steps until its home closes it: the factor of the learning rate for each."""


class HelpingTrainer(Protocol):
    """The trainer of a helper thread, ``train.help_lane``."""

    @property
    def pace(self) -> WorkerPace:
        """Its rounds."""

    def helper_of(self, thread: int) -> HelperSteps:
        """What the thread computes with."""

    def optimizer_of(self, thread: int) -> DenseStep:
        """The thread's optimizer, of what this trainer owns."""

    def count_help(self, thread: int) -> None:
        """The thread has finished a step."""
