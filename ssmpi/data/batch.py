"""A batch: some rows of a shard as arrays, without copies."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from ssmpi.runtime.bags import Bags
from ssmpi.runtime.compiled.cache_lines import ask_for_bytes
from ssmpi.runtime.compiled.jit import njit

NO_KEYS = np.empty((0, 0), np.int64)
STARTS_AHEAD, ROWS_AHEAD = 8, 4  # rows between the one being taken and the one being prefetched


@dataclass  # not frozen: construction would take three times as long, in every step
class Batch:
    """ids int32 (batch, features with one id), or bags of all features where some are lists; dense float32 (batch,
    dense features); labels float32 (batch,), NaN in unlabelled data; keys int64 (batch, keyed features). An id of a
    list that is pooled by mean has one divided by the length of its bag as weight. ``first_example`` is the number of
    its first row in training, by which dropout draws; the others follow.
    """

    ids: np.ndarray | Bags
    dense: np.ndarray
    labels: np.ndarray
    keys: np.ndarray = field(default_factory=lambda: NO_KEYS)
    first_example: int = 0

    def __len__(self) -> int:
        return len(self.labels)

    def part(self, start: int, stop: int) -> Batch:
        """Some rows, as views."""
        return Batch(self.ids[start:stop], self.dense[start:stop], self.labels[start:stop], self.keys[start:stop])

    def column(self, feature: int) -> np.ndarray:
        """The column ``feature`` of the ids, of a feature with one id, int32 (batch,)."""
        ids: np.ndarray = self.ids.column(feature) if isinstance(self.ids, Bags) else self.ids[:, feature]
        return ids

    def like(self, rows: int) -> Batch:
        """Fresh arrays for so many rows."""
        dense, labels, keys = (np.empty((rows, *a.shape[1:]), a.dtype) for a in (self.dense, self.labels, self.keys))
        if isinstance(self.ids, Bags):
            return Batch(self.ids.like(rows), dense, labels, keys)
        return Batch(np.empty((rows, self.ids.shape[1]), np.int32), dense, labels, keys)

    def take(self, order: np.ndarray, start: int, block: Batch) -> None:
        """Become the rows of a block that stand in ``order`` int64 (rows,) from ``start`` on."""
        mine, source = self.ids, block.ids
        if not isinstance(mine, Bags) or not isinstance(source, Bags):
            columns = source, block.dense, block.labels, block.keys
            _take(order, start, *columns, mine, self.dense, self.labels, self.keys)
            return
        while (
            needed := _take_bags(
                order, start, mine.features, source.starts, source.ids, source.weights, block.dense, block.labels,
                mine.starts, mine.ids, mine.weights, self.dense, self.labels,
            )
        ) > len(mine.ids):  # fmt: skip
            mine.room.reserve(needed)


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


@njit(cache=True, nogil=True)
def _take_bags(
    order: np.ndarray, start: int, features: int,
    starts: np.ndarray, ids: np.ndarray, weights: np.ndarray, dense: np.ndarray, labels: np.ndarray,
    out_starts: np.ndarray, out_ids: np.ndarray, out_weights: np.ndarray, out_dense: np.ndarray, out_labels: np.ndarray,
) -> int:  # fmt: skip
    """As ``_take``, with bags; how many ids there are. If they have no room, nothing else was done.

    The bags of a row lie together. Rows are prefetched: in random order a row of 200 ids is 18 lines that nobody else
    expects.
    """
    rows, total = out_labels.shape[0], 0
    out_starts[0] = 0
    for k in range(rows):
        if k + STARTS_AHEAD < rows:
            ask_for_bytes(starts.ctypes.data + 8 * order[start + k + STARTS_AHEAD] * features, 8 * (features + 1))
        first = order[start + k] * features
        moved = total - starts[first]
        for f in range(features):
            out_starts[k * features + f + 1] = starts[first + f + 1] + moved
        total += starts[first + features] - starts[first]
    if total > out_ids.size:
        return total
    for k in range(rows):
        if k + ROWS_AHEAD < rows:
            row = order[start + k + ROWS_AHEAD]
            at, end = starts[row * features], starts[(row + 1) * features]
            ask_for_bytes(ids.ctypes.data + 4 * at, 4 * (end - at))
            if weights.size:
                ask_for_bytes(weights.ctypes.data + 4 * at, 4 * (end - at))
            ask_for_bytes(dense.ctypes.data + 4 * row * dense.shape[1], 4 * dense.shape[1])
        row = order[start + k]
        at, place = starts[row * features], out_starts[k * features]
        count = out_starts[(k + 1) * features] - place
        for i in range(count):
            out_ids[place + i] = ids[at + i]
        if weights.size:
            for i in range(count):
                out_weights[place + i] = weights[at + i]
        for j in range(dense.shape[1]):
            out_dense[k, j] = dense[row, j]
        out_labels[k] = labels[row]
    return total
