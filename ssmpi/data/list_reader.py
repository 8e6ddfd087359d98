"""Reads the lists of ids of a shard's rows into bags."""

from __future__ import annotations

from io import FileIO

import numpy as np

from ssmpi.data import columns
from ssmpi.data.features import Features
from ssmpi.runtime.bags import Bags
from ssmpi.runtime.compiled.jit import njit

NO_LIST, SUM, MEAN = range(3)  # kinds of sparse features


class ListReader:
    """Reads the lists of one data set's rows."""

    def __init__(self, features: Features) -> None:
        lists = features.lists
        pooled = {name: MEAN if lists[name].pooling == "mean" else SUM for name in lists}
        self._kinds = np.array([pooled.get(name, NO_LIST) for name in features.sparse], np.int8)
        self._one_id, self._lists, self._weighted = len(features.one_id), len(lists), features.weighted

    def read(self, file: FileIO, places: dict[str, tuple[int, int]], first: int, out: Bags) -> None:
        """Fill the bags of ``out`` with the rows of a shard from row ``first`` on; OSError if they are not there,
        ListError if they make no sense.
        """
        rows, room = len(out), out.room
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
        bad = _merge((one_id, ends, listed, weights), self._kinds, (out.starts, room.ids, room.weights))
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
