"""The rows of one batch, distinct ones and those that the model reads."""

from __future__ import annotations

import itertools

import numpy as np

from ssmpi.core.aligned import aligned
from ssmpi.core.protocols import MPIRequest
from ssmpi.embedding import kernels


class Lookup:
    """One batch's rows on their way: ``values`` float32 (batch, features, dim) once they have arrived; ``flat`` are the
    same, (batch * features, dim). ``parts`` says which of the ``found`` distinct rows are those of each PS.
    """

    def __init__(self, batch: int, features: int, dim: int, servers: int) -> None:
        most = batch * features
        self.rows, self._inverse = np.empty(most, np.int32), np.empty(most, np.int32)
        self.starts = np.zeros(servers + 1, np.int64)
        self.distinct = aligned((most, dim))
        self._values = aligned((batch, features, dim))
        self.parts: list[slice] = []
        self.found = 0
        self.requests: list[MPIRequest] = []
        self.resize(batch)

    def resize(self, batch: int) -> None:
        """Use the buffers for a batch of this size."""
        self.values = self._values[:batch]
        self.flat = self.values.reshape(-1, self.values.shape[2])
        self.inverse = self._inverse[: len(self.flat)]

    def cut(self) -> None:
        """``starts`` has been filled in."""
        starts = self.starts.tolist()
        self.parts, self.found = [slice(start, stop) for start, stop in itertools.pairwise(starts)], starts[-1]

    def occurrences(self) -> np.ndarray:
        """int32 (found,): how often each of the distinct rows is in the batch."""
        times = np.empty(self.found, np.int32)
        kernels.occurrences(self.inverse, times)
        return times
