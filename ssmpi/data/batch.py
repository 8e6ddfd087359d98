"""What a worker thread trains on: some rows of a shard as arrays, without copies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ssmpi.compiled.jit import njit


@dataclass  # not frozen: construction would take three times as long, in every step
class Batch:
    """ids int32 (batch, sparse features), or bags where features are lists; dense float32 (batch, dense features);
    labels float32 (batch,), NaN in unlabelled data.
    """

    ids: Any  # np.ndarray, and Bags in the subclass
    dense: np.ndarray
    labels: np.ndarray

    def __len__(self) -> int:
        return len(self.labels)

    def part(self, start: int, stop: int) -> Batch:
        """Some rows, as views."""
        return Batch(self.ids[start:stop], self.dense[start:stop], self.labels[start:stop])

    def column(self, feature: int) -> np.ndarray:
        """The ids of a sparse feature with one id, int32 (batch,)."""
        found: np.ndarray = self.ids[:, feature]
        return found

    def like(self, rows: int) -> Batch:
        """Fresh arrays for so many rows."""
        return Batch(
            *(np.empty((rows, *array.shape[1:]), array.dtype) for array in (self.ids, self.dense, self.labels))
        )

    def take(self, order: np.ndarray, start: int, block: Batch) -> None:
        """Become the rows of a block that stand in ``order`` int64 (rows,) from ``start`` on."""
        _take(order, start, block.ids, block.dense, block.labels, self.ids, self.dense, self.labels)


@njit(cache=True, nogil=True)
def _take(
    order: np.ndarray, start: int, ids: np.ndarray, dense: np.ndarray, labels: np.ndarray, out_ids: np.ndarray,
    out_dense: np.ndarray, out_labels: np.ndarray,
) -> None:  # fmt: skip
    """One compiled call: each NumPy call holds the GIL for about 30 us if the model's step has evicted the caches."""
    for k in range(out_labels.shape[0]):
        row = order[start + k]
        for j in range(ids.shape[1]):
            out_ids[k, j] = ids[row, j]
        for j in range(dense.shape[1]):
            out_dense[k, j] = dense[row, j]
        out_labels[k] = labels[row]
