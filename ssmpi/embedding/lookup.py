"""The rows of one batch: the distinct rows, and the rows as the model reads them, one per id."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from ssmpi.compiled.aligned import aligned
from ssmpi.compiled.frame import Frame
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
    """The rows of one batch, in flight or arrived. ``found`` is the number of distinct rows; once they have arrived,
    ``values`` float32 (batch, features, dim) has a row per id. ``near`` are the weights and optimizer state of each PS
    in turn, empty arrays if this process cannot access them; ``within_reach`` if it can access them all, so that there
    is nothing to wait for.
    """

    def __init__(
        self, batch: int, placement: Placement, width: int, buffers: LookupBuffers, near: Sequence[np.ndarray]
    ) -> None:
        self._features = len(placement.cardinalities)
        most = batch * self._features
        self.rows, self._inverse = np.empty(most, np.int32), np.empty(most, np.int32)
        self.starts = np.zeros(placement.servers + 1, np.int64)
        self.distinct, self._summed = aligned((most, width)), buffers.summed
        self._values = self.values = aligned((batch, self._features, width))
        self.found, self.batch = 0, batch
        self.within_reach = all(array.size or not placement.rows_of(server) for server, array in enumerate(near[::2]))
        self.requests: list[MPIRequest] = []
        self._frame = Frame(
            (),
            (
                placement.limits, placement.strides, placement.owners, placement.bases, buffers.keys, buffers.places,
                self.rows, self._inverse, self.starts, self.distinct, self._values, self._summed, *near,
            ),
        )  # fmt: skip

    def pull(self, ids: np.ndarray) -> int:
        """Route ids int32 (batch, features) to PSs and fetch the rows that this process can access. Returns the number
        of distinct rows, ``found``; for an id outside its table, -1 minus its position.
        """
        if len(ids) != self.batch:
            self.batch, self.values = len(ids), self._values[: len(ids)]
        self.found = found = lookup_kernels.pull(self._frame.words, ids, self.within_reach)
        return found

    def expand(self) -> None:
        """Fill ``values`` from the distinct rows, which have arrived."""
        lookup_kernels.expand_rows(self._frame.words, self.batch * self._features)

    def push(self, gradients: np.ndarray, rate: float, epsilon: float) -> None:
        """Sum gradients float32 (batch, features, width) with respect to ``values`` by row, and update the rows that
        this process can access.
        """
        lookup_kernels.push(self._frame.words, gradients, rate, epsilon)

    def summed(self, gradients: np.ndarray) -> np.ndarray:
        """Gradients (as in ``push``) summed by row, float32 (found, width); valid until another lookup of this thread
        sums its own.
        """
        lookup_kernels.sum_gradients(self._frame.words, gradients)
        return self._summed[: self.found]

    @property
    def parts(self) -> list[slice]:
        """The slice of the distinct rows that belongs to each PS."""
        return [slice(start, stop) for start, stop in itertools.pairwise(self.starts.tolist())]

    def occurrences(self) -> np.ndarray:
        """int32 (found,): how often each distinct row occurs in the batch."""
        times = np.empty(self.found, np.int32)
        kernels.occurrences(self._inverse[: self.batch * self._features], times)
        return times
