"""The packed format of rows between raw text and shard: writing rows costs more than packing them.

A packed row has ids, keys, integers (those of Criteo, or the bits of float32) and the label, little-endian, each column
with as many bytes as its largest value needs, a key with 8. On the Kaggle set that is about half of its size in a
shard. It has the lengths of lists in place of ids: the ids themselves lie in files beside the rows, grouped by shard in
the same order. Where lists have weights, each lies in one integer with its id.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from data_prep.preparation import RowFormat
from data_prep.raw.parser import logarithm, word
from data_prep.rows import Rows, TokenLists
from data_prep.vocabulary.encoding import Encoder
from ssmpi.data.features import Features
from ssmpi.runtime.compiled.jit import njit

TOGETHER = 64
SLACK = 8  # readable bytes after the last packed row: columns are read eight bytes at a time

KEY_BYTES = 8
SPARE = 64  # arrays that are used again are larger by 1 / SPARE: the next one is often slightly larger

Columns = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


class Scratch:
    """Named arrays whose memory is reused: getting new pages from the operating system costs more than filling them."""

    def __init__(self) -> None:
        self._memory: dict[str, np.ndarray] = {}

    def array(self, name: str, shape: tuple[int, ...], dtype: DTypeLike) -> np.ndarray:
        """An uninitialized array, valid until the same name is requested again."""
        count = int(np.prod(shape)) * np.dtype(dtype).itemsize
        if name not in self._memory or self._memory[name].size < count:
            self._memory.pop(name, None)
            self._memory[name] = np.empty(count + count // SPARE, dtype=np.uint8)
        return self._memory[name][:count].view(dtype).reshape(shape)


def widths(cardinalities: Sequence[int], keyed: Sequence[int], largest: Sequence[int]) -> np.ndarray:
    """Bytes uint8 (sparse + dense,) of each id below its cardinality, of the keys of the features numbered ``keyed``,
    which follow the ids, and of each integer up to the largest.
    """
    values = [max(cardinality - 1, 0) for f, cardinality in enumerate(cardinalities) if f not in keyed]
    ids, integers = ([max(1, (value.bit_length() + 7) // 8) for value in some] for some in (values, largest))
    return np.array([*ids, *[KEY_BYTES] * len(keyed), *integers], dtype=np.uint8)


def row_bytes(wide: np.ndarray) -> int:
    """Bytes of a packed row: its columns, and one for the label."""
    return int(wide.sum()) + 1


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


@dataclass(frozen=True)
class Packer:
    """The vocabulary, the format, and ``wide``, the bytes of each packed column."""

    encoder: Encoder
    of: RowFormat
    wide: np.ndarray

    @property
    def row_bytes(self) -> int:
        """Bytes of a packed row."""
        return row_bytes(self.wide)

    def pack(
        self, rows: Rows, shards: np.ndarray, at: np.ndarray, out: np.ndarray, lists: ListGrouping | None = None
    ) -> None:
        """Pack rows as the function ``pack`` does; their lists go to ``lists``."""
        integers, ids = self.of.packed(rows, self.encoder.vocabulary.about), self.encoder.ids(rows)
        if lists:
            ids = np.concatenate([ids, lists.add(self.encoder.list_ids(rows), rows.lists, shards)])
        pack((ids, self.encoder.keys(rows), integers, rows.label), self.wide, shards, at, out)


@njit(cache=True, nogil=True)
def pack(columns: Columns, wide: np.ndarray, shards: np.ndarray, at: np.ndarray, out: np.ndarray) -> None:
    """Pack each row into ``out`` uint8 (rows, row_bytes) at the next place of its shard.

    columns: ids int32 (features with ids, n), keys int64 (keyed, n), integers int64 (n, dense), label uint8 (n,);
    shards int32 (n,): the shard of each row; at int64 (shards,): the place in ``out`` of the next row of each shard,
    advanced.
    """
    ids, keys, integers, label = columns
    sparse, keyed, dense = ids.shape[0], keys.shape[0], integers.shape[1]
    for i in range(shards.size):
        row = out[at[shards[i]]]
        at[shards[i]] += 1
        place = np.uint64(0)
        for f in range(sparse):
            left = np.int64(ids[f, i])
            for _ in range(wide[f]):
                row[place] = left & 255
                left >>= 8
                place += np.uint64(1)
        for f in range(keyed):
            left = keys[f, i]
            for _ in range(KEY_BYTES):
                row[place] = left & 255
                left >>= 8
                place += np.uint64(1)
        for f in range(dense):
            left = integers[i, f]
            for _ in range(wide[sparse + keyed + f]):
                row[place] = left & 255
                left >>= 8
                place += np.uint64(1)
        row[place] = label[i]


@njit(cache=True, nogil=True)
def unpack(packed: np.ndarray, order: np.ndarray, wide: np.ndarray, columns: Columns, floats: bool) -> int:
    """Unpack rows: row i of ``columns`` is the packed row ``order[i]``.

    packed uint8 (rows * row_bytes + SLACK,); order uint32 (rows,); columns: ids int32 (rows, features with ids), keys
    int64 (rows, keyed), dense float32 (rows, dense), label uint8 (rows,); floats: whether packed integers are bits of
    float32. Access is random: prefetching some rows ahead halves the time. The return value only keeps the compiler
    from removing the prefetch.
    """
    size = np.int64(wide.sum()) + 1
    fetched = np.uint8(0)
    for start in range(0, order.size, TOGETHER):
        some = order[start : start + TOGETHER]
        for row in some:
            fetched |= packed[row * size] | packed[row * size + size - 1]
        _unpack(packed, some, wide, start, columns, floats)
    return int(fetched)


@njit(cache=True, nogil=True)
def _unpack(
    packed: np.ndarray, order: np.ndarray, wide: np.ndarray, first: int, columns: Columns, floats: bool
) -> None:
    ids, keys, dense, label = columns
    bits, sparse, keyed = dense.view(np.uint32), ids.shape[1], keys.shape[1]
    size = np.int64(wide.sum()) + 1
    masks = np.uint64(0xFFFFFFFFFFFFFFFF) >> (np.uint64(64) - np.uint64(8) * wide.astype(np.uint64))
    for i in range(order.size):
        at = np.int64(order[i]) * size
        for f in range(sparse):
            ids[first + i, f] = word(packed, at) & masks[f]
            at += wide[f]
        for f in range(keyed):
            keys[first + i, f] = np.int64(word(packed, at))
            at += KEY_BYTES
        for f in range(dense.shape[1]):
            value = word(packed, at) & masks[sparse + keyed + f]
            if floats:
                bits[first + i, f] = value
            else:
                dense[first + i, f] = logarithm(np.int64(value))
            at += wide[sparse + keyed + f]
        label[first + i] = packed[at]
