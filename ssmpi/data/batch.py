"""What a worker thread trains on: some rows of a shard as arrays, without copies."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ssmpi.runtime.compiled.jit import njit

NO_KEYS = np.empty((0, 0), np.int64)


@dataclass  # not frozen: construction would take three times as long, in every step
class Batch:
    """ids int32 (batch, features with one id), or bags of all features where some are lists; dense float32 (batch,
    dense features); labels float32 (batch,), NaN in unlabelled data; keys int64 (batch, keyed features).
    """

    ids: Any  # np.ndarray, and Bags in the subclass
    dense: np.ndarray
    labels: np.ndarray
    keys: np.ndarray = field(default_factory=lambda: NO_KEYS)

    def __len__(self) -> int:
        return len(self.labels)

    def part(self, start: int, stop: int) -> Batch:
        """Some rows, as views."""
        return Batch(self.ids[start:stop], self.dense[start:stop], self.labels[start:stop], self.keys[start:stop])

    def column(self, feature: int) -> np.ndarray:
        """The column ``feature`` of the ids, of a feature with one id, int32 (batch,)."""
        found: np.ndarray = self.ids[:, feature]
        return found

    def like(self, rows: int) -> Batch:
        """Fresh arrays for so many rows."""
        return Batch(*(np.empty((rows, *a.shape[1:]), a.dtype) for a in (self.ids, self.dense, self.labels, self.keys)))

    def take(self, order: np.ndarray, start: int, block: Batch) -> None:
        """Become the rows of a block that stand in ``order`` int64 (rows,) from ``start`` on."""
        columns = block.ids, block.dense, block.labels, block.keys
        _take(order, start, *columns, self.ids, self.dense, self.labels, self.keys)


@njit(cache=True, nogil=True)
def _take(
    order: np.ndarray, start: int, ids: np.ndarray, dense: np.ndarray, labels: np.ndarray, keys: np.ndarray,
    out_ids: np.ndarray, out_dense: np.ndarray, out_labels: np.ndarray, out_keys: np.ndarray,
) -> None:  # fmt: skip
    """One compiled call: each NumPy call holds the GIL for about 30 us if the model's step has evicted the caches."""
    for k in range(out_labels.shape[0]):
        row = order[start + k]
        for j in range(ids.shape[1]):
            out_ids[k, j] = ids[row, j]
        for j in range(dense.shape[1]):
            out_dense[k, j] = dense[row, j]
        out_labels[k] = labels[row]
        for j in range(out_keys.shape[1]):
            out_keys[k, j] = keys[row, j]
