"""The ids of lists on their way from pieces to shards. Packed rows have the lengths of lists in place of ids; the ids
themselves lie in files beside them, grouped by shard in the same order. Where lists have weights, each lies in one
integer with its id.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from data_prep.tokens import TokenLists
from ssmpi.data.features import Features
from ssmpi.runtime.compiled.jit import njit


def packed_limits(features: Features, cardinalities: Sequence[int]) -> list[int]:
    """What the values in a packed row are below, by sparse feature: ids, and lengths of lists."""
    return [
        features.lists[name].longest + 1 if name in features.lists else cardinality
        for name, cardinality in zip(features.sparse, cardinalities, strict=True)
    ]


def item_type(features: Features) -> type[np.signedinteger[Any]]:
    """What an id of a list is packed as."""
    return np.int64 if features.weighted else np.int32


def with_weights(ids: np.ndarray, weights: np.ndarray | None) -> np.ndarray:
    """Ids int32 (n,) and their weights float32 (n,), None for 1, as integers int64 (n,)."""
    bits = np.ones(len(ids), np.float32) if weights is None else weights
    return np.stack([ids, bits.view(np.int32)], axis=1).view(np.int64)[:, 0]


def without_weights(items: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
    """(ids int32 (n,), weights float32 (n,) or None), from packed ones."""
    if items.dtype == np.int32:
        return items, None
    ids, bits = np.ascontiguousarray(items.view(np.int32).reshape(-1, 2).T)
    return ids, bits.view(np.float32)


class ListGrouping:
    """The lists of a piece: first in the order in which they are read, then by shard."""

    def __init__(self, shards: int, item: type[np.signedinteger[Any]]) -> None:
        self._item = item
        self._blocks: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
        self._counts = np.zeros(shards, np.int64)

    def add(self, ids: Sequence[np.ndarray], lists: Sequence[TokenLists], shards: np.ndarray) -> np.ndarray:
        """Take the next rows, of ``shards`` int32 (rows,): the ids int32 (tokens,) of each feature's lists. Returns
        lengths int32 (lists, rows).
        """
        lengths = np.stack([one.lengths for one in lists]).astype(np.int32)
        if self._item is np.int64:
            ids = [with_weights(some, one.weights) for some, one in zip(ids, lists, strict=True)]
        self._blocks.append((np.concatenate(ids), lengths, shards.copy()))
        np.add.at(self._counts, shards, lengths.sum(axis=0, dtype=np.int64))
        return lengths

    def grouped(self) -> tuple[np.ndarray, np.ndarray]:
        """(packed ids (ids,), starts int64 (shards + 1,) of each shard's)."""
        starts = np.concatenate([[0], np.cumsum(self._counts)])
        at, out = starts[:-1].copy(), np.empty(int(starts[-1]), self._item)
        for ids, lengths, shards in self._blocks:
            _group(ids, lengths, shards, at, out)
        return out, starts


@njit(cache=True, nogil=True)
def _group(ids: np.ndarray, lengths: np.ndarray, shards: np.ndarray, at: np.ndarray, out: np.ndarray) -> None:
    """Copy each row's lists, one after the other, to the next place ``at`` int64 (shards,) of its shard. ``ids`` has
    the lists of all rows of a feature, then those of the next one; ``lengths`` int32 (lists, rows).
    """
    lists, rows = lengths.shape
    source = np.zeros(lists, np.int64)
    for f in range(1, lists):
        source[f] = source[f - 1] + lengths[f - 1].sum()
    for row in range(rows):
        place = at[shards[row]]
        for f in range(lists):
            for _ in range(lengths[f, row]):
                out[place] = ids[source[f]]
                source[f] += 1
                place += 1
        at[shards[row]] = place


@njit(cache=True, nogil=True)
def permute(ids: np.ndarray, order: np.ndarray, counts: np.ndarray, out: np.ndarray) -> None:
    """Order the lists of a shard: row i of ``out`` is row ``order[i]`` uint32 of ``ids``, and has ``counts[i]`` int64
    ids.
    """
    starts = np.zeros(order.size + 1, np.int64)
    for i in range(order.size):
        starts[order[i] + 1] = counts[i]
    for row in range(order.size):
        starts[row + 1] += starts[row]
    place = 0
    for i in range(order.size):
        first = starts[order[i]]
        for k in range(counts[i]):
            out[place] = ids[first + k]
            place += 1
