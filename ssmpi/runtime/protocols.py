"""Interfaces between packages that do not import each other: ``sync`` steps a dense optimizer and updates embedding
rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np


class MPIRequest(Protocol):
    """The part of an MPI request that waiting needs."""

    def Test(self) -> bool:  # noqa: N802 - mpi4py's name
        """Whether the operation is complete."""


class Arrival(Protocol):
    """A message that has arrived from rank ``source``, ``size`` bytes long, and was not received yet."""

    source: int
    tag: int
    size: int

    def receive(self, array: np.ndarray) -> MPIRequest:
        """Start receiving it into a contiguous array, which may be longer."""


class DenseModel(Protocol):
    """One thread's gradients, and the weights they are for."""

    @property
    def arrays(self) -> tuple[np.ndarray, np.ndarray]:
        """Weights and gradients, float32 (parameters,)."""


class DenseStep(Protocol):
    """The optimizer as a worker thread sees it."""

    def step(self, model: DenseModel, factor: float) -> None:
        """Apply the model's gradients to the shared weights, at ``factor`` times the learning rate."""


class DenseOptimizer(DenseStep, Protocol):
    """A trainer's optimizer for its dense replica."""

    def state(self) -> dict[str, np.ndarray]:
        """Its state by name: live arrays."""


class RowSet(Protocol):
    """Unique rows in the order of their servers, as much of a lookup as an update needs. Rows of 16 bits are rounded by
    the ``number`` of the update, which no other one of the run has.
    """

    number: int

    @property
    def rows(self) -> np.ndarray:
        """int32 (unique rows or more,): numbers on their servers."""

    @property
    def parts(self) -> list[slice]:
        """Which of the rows are those of each server."""

    def occurrences(self) -> np.ndarray:
        """int32 (unique rows,): how many lookups each row stands for."""


class RowLookup(RowSet, Protocol):
    """The rows of one batch."""

    @property
    def starts(self) -> np.ndarray:
        """int64 (servers + 1,): where each server's rows begin."""

    @property
    def values(self) -> np.ndarray:
        """float32 (batch, features, width)."""

    @property
    def unique_count(self) -> int:
        """How many unique rows there are."""

    @property
    def all_mapped(self) -> bool:
        """Whether this process can access all of them."""

    def summed(self, gradients: np.ndarray) -> np.ndarray:
        """Gradients of ``values`` summed by row, float32 (unique rows, width)."""


# How gradients of a lookup's ``values`` are applied, at a factor times the learning rate, by a worker thread
PushRows = Callable[[RowLookup, np.ndarray, float, int], None]


class RowTables(Protocol):
    """A trainer's tables, as far as updates are concerned."""

    def update(self, lookup: RowSet, gradients: np.ndarray, factor: float, thread: int) -> None:
        """Apply gradients float32 (unique rows, width) at ``factor`` times the learning rate; it may return before. It
        is the trainer's part, with rows of its own or none, in a step of all trainers.
        """

    def drain(self) -> None:
        """Wait until every update of this trainer has been applied. Call while its worker threads are paused."""
