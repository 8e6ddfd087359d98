"""The packed format of rows between raw text and shard: writing rows costs more than packing them.

A packed row has ids, keys, integers (those of Criteo, or the bits of float32) and the label, little-endian, each column
with as many bytes as its largest value needs, a key with 8. On the Kaggle set that is about half of its size in a
shard.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import DTypeLike

from data_prep.preparation import RowFormat, Rows
from data_prep.raw.fields import word
from data_prep.raw.parser import logarithm
from data_prep.shards.list_ids import ListGrouping
from data_prep.vocabulary.encoding import Encoder
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
