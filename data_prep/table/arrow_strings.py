"""Strings of Arrow columns as 64-bit tokens, one by one, or once for each distinct one of a dictionary."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from data_prep.rows import Tokens
from data_prep.table.schema import INTEGER, LIST, NUMBER, STRING, TIMESTAMP, WEIGHTS, Schema
from ssmpi.runtime.compiled.hash_table import mix
from ssmpi.runtime.compiled.jit import njit

ARROW = {NUMBER: pa.float64(), INTEGER: pa.int64(), STRING: pa.binary(), TIMESTAMP: pa.timestamp("us")}
ARROW[LIST] = ARROW[WEIGHTS] = ARROW[STRING]  # of text, before it is split


@njit(cache=True, nogil=True)
def hash_strings(offsets: np.ndarray, content: np.ndarray, out: np.ndarray) -> None:
    """64-bit hashes (FNV-1a, and the last mixing steps of splitmix64) of strings: uint64 (rows,) from offsets int32
    (rows + 1,) into ``content`` uint8."""
    for row in range(out.size):
        z = np.uint64(0xCBF29CE484222325)
        at, stop = np.uint64(offsets[row]), np.uint64(offsets[row + 1])  # unsigned: no test for negative places
        while at < stop:
            z = (z ^ np.uint64(content[at])) * np.uint64(0x100000001B3)
            at += np.uint64(1)
        out[row] = mix(z)


@njit(cache=True, nogil=True)
def _mark(
    there: np.ndarray,
    first_bit: int,
    offsets: np.ndarray,
    content: np.ndarray,
    missing_offsets: np.ndarray,
    missing: np.ndarray,
    marked: np.ndarray,
) -> None:
    """Set ``marked`` bool (rows,) for strings that are one of ``missing``, both as ``hash_strings`` has them, or whose
    bit in ``there`` uint8, from ``first_bit`` on, is not set; that is empty where all are there.
    """
    longest = 0
    for m in range(missing_offsets.size - 1):
        longest = max(longest, missing_offsets[m + 1] - missing_offsets[m])
    for row in range(marked.size):
        bit = first_bit + row
        if there.size and not (there[bit >> 3] >> (bit & 7)) & 1:
            marked[row] = True
            continue
        start, size = offsets[row], offsets[row + 1] - offsets[row]
        if size > longest:
            continue
        for m in range(missing_offsets.size - 1):
            first = missing_offsets[m]
            same = missing_offsets[m + 1] - first == size
            at = 0
            while same and at < size:
                same = content[start + at] == missing[first + at]
                at += 1
            marked[row] |= same


def cast_or_null(values: pa.Array, kind: pa.DataType, options: pc.CastOptions | None = None) -> pa.Array:
    """Values as another type, by default a safe cast; null for those that cannot be read so."""
    options = options or pc.CastOptions.safe(kind)
    try:
        return values.cast(options=options)
    except pa.ArrowInvalid:
        codes = values.dictionary_encode()

    def read(value: pa.Scalar) -> pa.Scalar | None:
        try:
            return value.cast(options=options)
        except pa.ArrowInvalid:
            return None

    return pa.array(map(read, codes.dictionary), kind).take(codes.indices)


def missing_values(schema: Schema) -> pa.Array:
    """The strings that mean a missing value."""
    return pa.array([value.encode() for value in schema.missing], ARROW[STRING])


def _parts(column: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """Offsets int32 (rows + 1,) and content uint8 of strings."""
    if not len(column):
        return np.zeros(1, dtype=np.int32), np.empty(0, dtype=np.uint8)
    _, offsets, content = column.buffers()
    starts = np.frombuffer(offsets, dtype=np.int32, count=len(column) + 1, offset=4 * column.offset)
    return starts, np.frombuffer(content or b"", dtype=np.uint8)


def _marked(column: pa.Array, missing: pa.Array) -> np.ndarray:
    """Where strings are missing, or are one of ``missing``: bool (rows,)."""
    marked = np.zeros(len(column), dtype=np.bool_)
    there = np.frombuffer((column.null_count and column.buffers()[0]) or b"", dtype=np.uint8)
    _mark(there, column.offset, *_parts(column), *_parts(missing), marked)
    return marked


def null_where_missing(column: pa.Array, missing: pa.Array) -> pa.Array:
    """The strings; null where they are one of ``missing``."""
    marked = _marked(column, missing)
    if np.count_nonzero(marked) == column.null_count:  # which is usual, and saves a copy
        return column
    return pc.if_else(pa.array(marked), pa.scalar(None, ARROW[STRING]), column)


def _binary(column: pa.Array) -> pa.Array:
    """Strings as bytes; a view of Arrow's usual type takes a tenth of a cast."""
    return column.view(ARROW[STRING]) if pa.types.is_string(column.type) else column.cast(ARROW[STRING])


def hashes_of(column: pa.Array) -> np.ndarray:
    """uint64 (rows,): hashes of strings, and of integers as text in decimal; anything where missing."""
    return tokens_of(column if pa.types.is_binary(column.type) else column.cast(pa.string()).cast(ARROW[STRING]))


def tokens_of(column: pa.Array) -> np.ndarray:
    """uint64 (rows,): integers as they are, hashes of strings; anything where missing."""
    if not pa.types.is_binary(column.type):
        integers: np.ndarray = column.fill_null(0).to_numpy(zero_copy_only=False)
        return integers.view(np.uint64)
    hashes = np.empty(len(column), dtype=np.uint64)
    hash_strings(*_parts(column), hashes)
    return hashes


@dataclass(frozen=True)
class DistinctStrings:
    """The distinct strings of a column, and a missing one behind them: their hashes uint64, and whether they mean a
    missing value, uint8. ``of`` keeps the array alive, so that another one has another address."""

    of: pa.Array
    hashes: np.ndarray
    gone: np.ndarray

    def are(self, other: pa.Array) -> bool:
        """Whether ``other`` is the same memory."""
        places = [buffer and buffer.address for buffer in self.of.buffers()]
        same = places == [buffer and buffer.address for buffer in other.buffers()]
        return same and (self.of.offset, len(self.of)) == (other.offset, len(other))


class StringReader:
    """Reads strings of which nothing but tokens is needed; remembers the last dictionary of each encoded column."""

    def __init__(self, missing: pa.Array) -> None:
        self._missing = missing
        self._distinct: dict[str, DistinctStrings] = {}

    def tokens(self, name: str, column: pa.Array) -> Tokens:
        """The tokens of strings. Of encoded ones each distinct one is hashed once for all batches of a read, and also
        counted and looked up once in each batch, if there are fewer than rows.
        """
        if not pa.types.is_dictionary(column.type):
            values = _binary(column)
            return Tokens(tokens_of(values), _marked(values, self._missing).view(np.uint8))
        distinct = self._distinct.get(name)
        if distinct is None or not distinct.are(column.dictionary):
            values = _binary(column.dictionary)
            gone = np.append(_marked(values, self._missing).view(np.uint8), np.uint8(1))
            distinct = DistinctStrings(column.dictionary, np.append(tokens_of(values), np.uint64(0)), gone)
            self._distinct[name] = distinct
        codes = column.indices.cast(pa.int32())
        if codes.null_count:
            codes = codes.fill_null(len(distinct.of))
        found = Tokens(distinct.hashes, distinct.gone, codes=codes.to_numpy())
        if len(distinct.hashes) < len(codes):
            return found
        return Tokens(found.by_row(distinct.hashes), found.by_row(distinct.gone))
