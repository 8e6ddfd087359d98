"""Strings of Arrow columns as 64-bit tokens: hashed one by one, or once for each distinct one of a dictionary."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from data_prep.table.schema import INTEGER, NUMBER, STRING, TIMESTAMP, Schema
from ssmpi.compiled.jit import njit

ARROW = {NUMBER: pa.float64(), INTEGER: pa.int64(), STRING: pa.binary(), TIMESTAMP: pa.timestamp("us")}


@njit(cache=True, nogil=True)
def hash_strings(offsets: np.ndarray, content: np.ndarray, out: np.ndarray) -> None:
    """64-bit hashes (FNV-1a, and the last mixing steps of splitmix64) of strings: uint64 (rows,) from offsets int32
    (rows + 1,) into ``content`` uint8."""
    for row in range(out.size):
        z = np.uint64(0xCBF29CE484222325)
        for at in range(offsets[row], offsets[row + 1]):
            z = (z ^ np.uint64(content[at])) * np.uint64(0x100000001B3)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        out[row] = z ^ (z >> np.uint64(31))


def missing_values(schema: Schema) -> pa.Array:
    """The strings that mean a missing value."""
    return pa.array([value.encode() for value in schema.missing], ARROW[STRING])


def tokens_of(column: pa.Array) -> np.ndarray:
    """uint64 (rows,): integers as they are, hashes of strings; anything where missing."""
    if not pa.types.is_binary(column.type):
        integers: np.ndarray = column.fill_null(0).to_numpy(zero_copy_only=False)
        return integers.view(np.uint64)
    _, offsets, content = column.buffers()
    hashes = np.empty(len(column), dtype=np.uint64)
    if len(column):
        starts = np.frombuffer(offsets, dtype=np.int32, count=len(column) + 1, offset=4 * column.offset)
        hash_strings(starts, np.frombuffer(content or b"", dtype=np.uint8), hashes)
    return hashes


@dataclass(frozen=True)
class DistinctStrings:
    """The distinct strings of a column: their hashes uint64 and whether they mean a missing value, one more of each for
    null. ``of`` keeps the array alive, so that another one has another address."""

    of: pa.Array
    hashes: np.ndarray
    gone: np.ndarray

    def are(self, other: pa.Array) -> bool:
        """Whether ``other`` is the same memory."""
        places = [buffer and buffer.address for buffer in self.of.buffers()]
        same = places == [buffer and buffer.address for buffer in other.buffers()]
        return same and (self.of.offset, len(self.of)) == (other.offset, len(other))


class EncodedStrings:
    """Tokens of dictionary-encoded columns; remembers the last dictionary of each."""

    def __init__(self, schema: Schema) -> None:
        self._missing = missing_values(schema)
        self._distinct: dict[str, DistinctStrings] = {}

    def tokens(self, name: str, column: pa.DictionaryArray) -> tuple[np.ndarray, np.ndarray]:
        """(Tokens, whether they are missing) of encoded strings: each distinct one is hashed once for all batches of a
        read."""
        distinct = self._distinct.get(name)
        if distinct is None or not distinct.are(column.dictionary):
            values = column.dictionary.cast(ARROW[STRING])
            gone = pc.or_(values.is_null(), pc.is_in(values, self._missing)).to_numpy(zero_copy_only=False)
            hashes = np.append(tokens_of(values), np.uint64(0))
            distinct = self._distinct[name] = DistinctStrings(column.dictionary, hashes, np.append(gone, True))
        codes = column.indices.fill_null(len(column.dictionary)).to_numpy(zero_copy_only=False)
        return distinct.hashes[codes], distinct.gone[codes]
