"""Rows on their way from raw text to their shard: packed, because writing them down costs more than working them out.

A packed row holds 26 ids, 13 integers and the label, lowest byte first, each column in as many bytes as its largest
value takes. On the Kaggle set that is about half of what it takes in a shard.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numba import njit

from data_prep.columns import DENSE_FEATURES, ROW_BYTES, SPARSE_FEATURES
from data_prep.raw.fields import word
from data_prep.raw.parser import logarithm

GUESSED_ROW_BYTES = ROW_BYTES  # before the raw text has been read: four bytes are enough for all but wild integers

TOGETHER = 64
SLACK = 8  # readable bytes after the last packed row: columns are read eight bytes at a time

Columns = tuple[np.ndarray, np.ndarray, np.ndarray]


def widths(cardinalities: Sequence[int], largest: Sequence[int]) -> np.ndarray:
    """Bytes uint8 (39,) of each id below its cardinality and of each integer up to the largest."""
    values = [*(max(cardinality - 1, 0) for cardinality in cardinalities), *largest]
    return np.array([max(1, (value.bit_length() + 7) // 8) for value in values], dtype=np.uint8)


def row_bytes(wide: np.ndarray) -> int:
    """Bytes of a packed row: its columns, and one for the label."""
    return int(wide.sum()) + 1


@njit(cache=True, nogil=True)
def pack(columns: Columns, wide: np.ndarray, shards: np.ndarray, at: np.ndarray, out: np.ndarray) -> None:
    """Put each row into ``out`` uint8 (rows, row_bytes) where its shard's rows have come to.

    columns: ids int32 (26, n), integers int64 (n, 13), label uint8 (n,); shards int32 (n,): the shard of each row;
    at int64 (shards,): where in ``out`` the next row of each shard goes, moved on.
    """
    ids, integers, label = columns
    for i in range(shards.size):
        row = out[at[shards[i]]]
        at[shards[i]] += 1
        place = np.uint64(0)
        for f in range(SPARSE_FEATURES):
            left = np.int64(ids[f, i])
            for _ in range(wide[f]):
                row[place] = left & 255
                left >>= 8
                place += np.uint64(1)
        for f in range(DENSE_FEATURES):
            left = integers[i, f]
            for _ in range(wide[SPARSE_FEATURES + f]):
                row[place] = left & 255
                left >>= 8
                place += np.uint64(1)
        row[place] = label[i]


@njit(cache=True, nogil=True)
def unpack(packed: np.ndarray, order: np.ndarray, wide: np.ndarray, columns: Columns) -> int:
    """Take packed rows apart: row i of ``columns`` is the packed row ``order[i]``.

    packed uint8 (rows * row_bytes + SLACK,); order uint32 (rows,); columns: ids int32 (rows, 26), dense float32
    (rows, 13), label uint8 (rows,). The rows lie all over memory: fetching some ahead of taking them apart halves the
    time. What is returned only keeps the compiler from leaving that out.
    """
    size = np.int64(wide.sum()) + 1
    fetched = np.uint8(0)
    for start in range(0, order.size, TOGETHER):
        some = order[start : start + TOGETHER]
        for row in some:
            fetched |= packed[row * size] | packed[row * size + size - 1]
        _unpack(packed, some, wide, start, columns)
    return int(fetched)


@njit(cache=True, nogil=True)
def _unpack(packed: np.ndarray, order: np.ndarray, wide: np.ndarray, first: int, columns: Columns) -> None:
    ids, dense, label = columns
    size = np.int64(wide.sum()) + 1
    masks = np.uint64(0xFFFFFFFFFFFFFFFF) >> (np.uint64(64) - np.uint64(8) * wide.astype(np.uint64))
    for i in range(order.size):
        at = np.int64(order[i]) * size
        for f in range(SPARSE_FEATURES):
            ids[first + i, f] = word(packed, at) & masks[f]
            at += wide[f]
        for f in range(DENSE_FEATURES):
            dense[first + i, f] = logarithm(np.int64(word(packed, at) & masks[SPARSE_FEATURES + f]))
            at += wide[SPARSE_FEATURES + f]
        label[first + i] = packed[at]
