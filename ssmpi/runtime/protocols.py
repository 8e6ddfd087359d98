"""Interfaces between packages that do not import each other: ``sync`` steps a dense optimizer and updates embedding
rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

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
    """Unique rows in the order of their servers, as much of a lookup as an update needs."""

    @property
    def rows(self) -> np.ndarray:
        """int32 (unique rows or more,): numbers on their servers."""

    @property
    def parts(self) -> list[slice]:
        """Which of the rows are those of each server."""

    def occurrences(self) -> np.ndarray:
        """int32 (unique rows,): how many lookups each row stands for."""


class RowLookup(RowSet, Protocol):
    """The rows of one batch, requested or received."""

    requests: list[MPIRequest]  # while it is under way

    @property
    def starts(self) -> np.ndarray:
        """int64 (servers + 1,): where each server's rows begin."""

    @property
    def unique(self) -> np.ndarray:
        """float32 (unique rows or more, width): the values of ``rows``."""

    @property
    def values(self) -> np.ndarray:
        """float32 (batch, features, width)."""

    @property
    def unique_count(self) -> int:
        """How many unique rows there are."""

    @property
    def all_mapped(self) -> bool:
        """Whether this process can access all of them: then they have arrived, and need not be requested."""

    def push(self, gradients: np.ndarray, optimizer: np.ndarray, factor: float) -> None:
        """Update the mapped rows by gradients of ``values`` and an optimizer's numbers."""

    def summed(self, gradients: np.ndarray) -> np.ndarray:
        """Gradients of ``values`` summed by row, float32 (unique rows, width)."""

    def request(self, server: int) -> tuple[np.ndarray, np.ndarray]:
        """What to ask a server for whose rows are not mapped, and the array that its reply goes to."""

    def pushed_bags(self, gradients: np.ndarray) -> Mapping[int, tuple[np.ndarray, Any]]:
        """What goes to each server that pools in place of gradients by row."""


class RowTransport(Protocol):
    """How a worker thread reaches embedding rows. ``thread`` tags its messages."""

    @property
    def mapped(self) -> Sequence[np.ndarray]:
        """Weights and optimizer state of each server's rows in turn, empty where they are not mapped: a lookup
        fetches and updates the others where they lie.
        """

    def ask(self, lookup: RowLookup, thread: int) -> None:
        """Start fetching those of ``lookup.unique`` that are not mapped, for ``lookup.rows``."""

    def collect(self, lookup: RowLookup) -> None:
        """Wait until ``lookup.unique`` has arrived."""

    def push(self, lookup: RowLookup, gradients: np.ndarray, factor: float, thread: int) -> None:
        """Apply gradients of ``lookup.values`` at ``factor`` times the learning rate; it may return before then."""


class RowTables(RowTransport, Protocol):
    """A trainer's own transport."""

    def update(self, lookup: RowSet, gradients: np.ndarray, factor: float, thread: int) -> None:
        """As ``push``, of any set of rows, by gradients float32 (unique rows, width)."""

    def drain(self) -> None:
        """Wait until every update of this trainer has been applied. Call while its worker threads are paused."""
