"""Batches and blocks of rows with list features."""

from __future__ import annotations

from dataclasses import dataclass
from io import FileIO

import numpy as np

from ssmpi.data import columns
from ssmpi.data.batch import Batch
from ssmpi.data.features import Features
from ssmpi.runtime.bags import Bags, IdRoom
from ssmpi.runtime.compiled.cache_lines import ask_for_bytes
from ssmpi.runtime.compiled.jit import njit

NO_LIST, SUM, MEAN = range(3)  # kinds of sparse features
STARTS_AHEAD, ROWS_AHEAD = 8, 4  # rows between the one being taken and the one being prefetched


@dataclass
class BagBatch(Batch):
    """As ``Batch``, with the ids of a row in bags, one for each sparse feature, in order. An id of a feature that is
    pooled by mean has one divided by the length of its bag as weight.
    """

    ids: Bags

    @classmethod
    def empty(cls, rows: int, features: Features) -> BagBatch:
        """Room for so many rows, without labels."""
        room = IdRoom(int(rows * sum(features.ids_per_row)), weighted=features.has_weights)
        bags = Bags(room, np.zeros(rows * len(features.sparse) + 1, np.int64), len(features.sparse))
        return cls(bags, np.empty((rows, len(features.dense)), np.float32), np.full(rows, np.nan, np.float32))

    def part(self, start: int, stop: int) -> BagBatch:
        """Some rows, as views."""
        return BagBatch(self.ids.part(start, stop), self.dense[start:stop], self.labels[start:stop])

    def column(self, feature: int) -> np.ndarray:
        """As that of ``Batch``."""
        return self.ids.column(feature)

    def like(self, rows: int) -> BagBatch:
        """Fresh arrays for so many rows."""
        bags, each = self.ids, self.ids.size // max(1, len(self))
        room = IdRoom(rows * each, weighted=bags.room.weighted)
        starts = np.zeros(rows * bags.features + 1, np.int64)
        dense = np.empty((rows, self.dense.shape[1]), np.float32)
        return BagBatch(Bags(room, starts, bags.features), dense, np.empty(rows, np.float32))

    def take(self, order: np.ndarray, start: int, block: Batch) -> None:
        """Become the rows of a block that stand in ``order`` int64 (rows,) from ``start`` on."""
        assert isinstance(block, BagBatch)
        source, mine = block.ids, self.ids
        while (
            needed := _take_bags(
                order, start, (source.starts, source.ids, source.weights, block.dense, block.labels),
                (mine.starts, mine.ids, mine.weights, self.dense, self.labels), mine.features,
            )
        ) > len(mine.ids):  # fmt: skip
            mine.room.reserve(needed)


class ListReader:
    """Reads the lists of one data set's rows."""

    def __init__(self, features: Features) -> None:
        lists = features.lists
        pooled = {name: MEAN if lists[name].pooling == "mean" else SUM for name in lists}
        self._kinds = np.array([pooled.get(name, NO_LIST) for name in features.sparse], np.int8)
        self._one_id, self._lists, self._weighted = len(features.one_id), len(lists), features.weighted

    def read(self, file: FileIO, places: dict[str, tuple[int, int]], first: int, out: BagBatch) -> None:
        """Fill the bags of ``out`` with the rows of a shard from row ``first`` on; OSError if they are not there,
        ListError if they make no sense.
        """
        rows, room = len(out), out.ids.room
        ends = np.zeros((rows + 1, self._lists), np.int64)  # of the row before, too
        before = min(first, 1)
        columns.read_rows(file, places["list_ends"][0], first - before, ends[1 - before :])
        start, stop = int(ends[0, -1]), int(ends[-1, -1])
        columns.check_span(first, start, stop, places)
        one_id, listed = np.empty((rows, self._one_id), np.int32), np.empty(stop - start, np.int32)
        weights = np.empty(stop - start if self._weighted else 0, np.float32)
        room.reserve(stop - start + one_id.size)
        if not self._one_id:
            listed = room.ids[: stop - start]
            weights = room.weights[: stop - start] if self._weighted else weights
        columns.read_rows(file, places["ids"][0], first, one_id)
        columns.read_rows(file, places["list_ids"][0], start, listed)
        if self._weighted:
            columns.read_rows(file, places["list_weights"][0], start, weights)
        bad = _merge((one_id, ends, listed, weights), self._kinds, (out.ids.starts, room.ids, room.weights))
        if bad >= 0:
            raise columns.ListError(f"the ends of the lists of its row {first + bad} do not ascend")


@njit(cache=True, nogil=True)
def _merge(
    read: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray], kinds: np.ndarray,
    bags: tuple[np.ndarray, np.ndarray, np.ndarray],
) -> int:  # fmt: skip
    """Put one-id features and lists into bags, feature by feature; the first row whose ends do not ascend, or -1.

    read: ids int32 (rows, one-id features); ends int64 (rows + 1, lists), those of the row before first; ids int32 and
    weights float32 of the lists, empty if all are 1. kinds int8 (features,). bags: starts int64 (rows * features + 1,),
    room for ids int32 and weights float32, empty if all are 1. If no feature has one id, the ids are in place.
    """
    one_id, ends, listed, listed_weights = read
    starts, ids, weights = bags
    features, merged = kinds.size, one_id.shape[1] > 0
    first = ends[0, ends.shape[1] - 1]
    at, place = 0, 0
    starts[0] = 0
    for r in range(one_id.shape[0]):
        one, of = 0, 0
        for f in range(features):
            if kinds[f] == NO_LIST:
                ids[place] = one_id[r, one]
                if weights.size:
                    weights[place] = np.float32(1.0)
                one += 1
                place += 1
            else:
                length = ends[r + 1, of] - first - at
                if length < 0 or at + length > listed.size:
                    return r
                if merged:
                    ids[place : place + length] = listed[at : at + length]
                if weights.size:
                    for i in range(length):
                        if kinds[f] == MEAN:
                            weights[place + i] = np.float32(1.0) / np.float32(length)
                        elif listed_weights.size:
                            weights[place + i] = listed_weights[at + i]
                        else:
                            weights[place + i] = np.float32(1.0)
                of += 1
                at += length
                place += length
            starts[r * features + f + 1] = place
    return -1


@njit(cache=True, nogil=True)
def _take_bags(
    order: np.ndarray, start: int, block: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray],
    out: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray], features: int,
) -> int:  # fmt: skip
    """One compiled call, as in ``batch``; how many ids there are. If they have no room, nothing else was done.

    block, out: starts, ids, weights, dense, labels. The bags of a row lie together. Rows are prefetched: in random
    order a row of 200 ids is 18 lines that nobody else expects.
    """
    starts, ids, weights, dense, labels = block
    out_starts, out_ids, out_weights, out_dense, out_labels = out
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
