"""The rows of one batch: the unique rows, and the rows as the model reads them, one per id."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from ssmpi.compiled.aligned import aligned
from ssmpi.compiled.kernel_args import KernelArgs
from ssmpi.core.protocols import MPIRequest
from ssmpi.embedding import kernels, lookup_kernels
from ssmpi.embedding.placement import Placement


class LookupBuffers:
    """Buffers to route at most ``ids`` ids and sum their gradients, shared by the lookups of a thread."""

    def __init__(self, ids: int, width: int) -> None:
        slots = 1 << max(4, (2 * ids - 1).bit_length())
        self.keys, self.places = np.full(slots, kernels.EMPTY, np.int64), np.empty(slots, np.int32)
        self.summed = aligned((ids, width))


class Lookup:
    """The rows of one batch, in flight or arrived. ``unique_count`` is the number of unique rows; after their arrival
    ``values`` float32 (batch, features, dim) has a row per id. ``mapped`` are the weights and optimizer state of each
    PS in turn, empty arrays where this process has not mapped them; ``all_mapped`` if it has all of them, so that there
    is nothing to wait for.
    """

    def __init__(
        self, batch: int, placement: Placement, width: int, buffers: LookupBuffers, mapped: Sequence[np.ndarray]
    ) -> None:
        self._features = len(placement.cardinalities)
        most = batch * self._features
        self.rows, self._inverse = np.empty(most, np.int32), np.empty(most, np.int32)
        self.starts = np.zeros(placement.servers + 1, np.int64)
        self.unique, self._summed = aligned((most, width)), buffers.summed
        self._values = self.values = aligned((batch, self._features, width))
        self.unique_count, self.batch = 0, batch
        self.all_mapped = all(array.size or not placement.rows_of(server) for server, array in enumerate(mapped[::2]))
        self.requests: list[MPIRequest] = []
        self._args = KernelArgs(
            (),
            (
                placement.limits, placement.strides, placement.owners, placement.bases, buffers.keys, buffers.places,
                self.rows, self._inverse, self.starts, self.unique, self._values, self._summed, *mapped,
            ),
        )  # fmt: skip

    def pull(self, ids: np.ndarray) -> int:
        """Route ids int32 (batch, features) to PSs and fetch the rows that this process can access. Returns the number
        of unique rows, ``unique_count``; for an id outside its table, -1 minus its position.
        """
        if len(ids) != self.batch:
            self.batch, self.values = len(ids), self._values[: len(ids)]
        self.unique_count = count = lookup_kernels.pull(self._args.words, ids, self.all_mapped)
        return count

    def expand(self) -> None:
        """Fill ``values`` from the unique rows, which have arrived."""
        lookup_kernels.expand_rows(self._args.words, self.batch * self._features)

    def push(self, gradients: np.ndarray, optimizer: np.ndarray, factor: float) -> None:
        """Sum gradients float32 (batch, features, width) with respect to ``values`` by row, and update the rows that
        this process can access by an optimizer's numbers, at ``factor`` times the learning rate.
        """
        lookup_kernels.push(self._args.words, gradients, optimizer, factor)

    def summed(self, gradients: np.ndarray) -> np.ndarray:
        """Gradients (as in ``push``) summed by row, float32 (unique rows, width); valid until another lookup of this
        thread sums its own.
        """
        lookup_kernels.sum_gradients(self._args.words, gradients)
        return self._summed[: self.unique_count]

    @property
    def parts(self) -> list[slice]:
        """The slice of the unique rows that belongs to each PS."""
        return [slice(start, stop) for start, stop in itertools.pairwise(self.starts.tolist())]

    def occurrences(self) -> np.ndarray:
        """int32 (unique rows,): how often each unique row occurs in the batch."""
        times = np.empty(self.unique_count, np.int32)
        kernels.occurrences(self._inverse[: self.batch * self._features], times)
        return times
