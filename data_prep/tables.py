"""Open-addressing hash tables over 32-bit tokens, compiled: counting (or first appearance) and looking up ids.

A count per token in Python costs twenty times as much. Used by ``scan`` (pass 1) and ``vocabulary`` (lookup).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numba import njit

from data_prep.parser import Integer
from ssmpi.data.schema import DENSE_FEATURES, MISSING_ID, RARE_ID, SPARSE_FEATURES

FIRST_BITS = 10
LOAD = 0.6
SLOT_BYTES = 12
MIX = np.uint64(0x9E3779B97F4A7C15)


@njit(cache=True, nogil=True)
def _slot(token: Integer, bits: Integer) -> Integer:
    """The home slot of a token in a table of 2**bits: multiplicative (Fibonacci) hashing."""
    return np.int64((np.uint64(token) * MIX) >> np.uint64(64 - bits))


@njit(cache=True, nogil=True)
def _add(tokens: np.ndarray, absent: np.ndarray, keys: np.ndarray, values: np.ndarray, state: np.ndarray) -> int:
    """Count tokens from row ``state[0]`` on until done or the table is full at ``state[2]`` entries; the row reached.

    An empty slot has value 0. ``state`` int64: next row, entries, limit. Rows with ``absent`` set are left out.
    """
    bits = np.int64(np.log2(keys.size) + 0.5)
    wrap = keys.size - 1
    row, used, limit = state[0], state[1], state[2]
    while row < tokens.size and used < limit:
        if not absent[row]:
            token = tokens[row]
            slot = _slot(token, bits)
            while values[slot] != 0 and keys[slot] != token:
                slot = (slot + 1) & wrap
            if values[slot] == 0:
                keys[slot] = token
                used += 1
            values[slot] += 1
        row += 1
    state[0], state[1] = row, used
    return row


@njit(cache=True, nogil=True)
def _note_first(tokens: np.ndarray, first: int, keys: np.ndarray, values: np.ndarray, state: np.ndarray) -> int:
    """As ``_add``, but a token's value becomes 1 + the least position seen, where row r is at ``first + r``."""
    bits = np.int64(np.log2(keys.size) + 0.5)
    wrap = keys.size - 1
    row, used, limit = state[0], state[1], state[2]
    while row < tokens.size and used < limit:
        token = tokens[row]
        slot = _slot(token, bits)
        while values[slot] != 0 and keys[slot] != token:
            slot = (slot + 1) & wrap
        if values[slot] == 0:
            keys[slot] = token
            used += 1
            values[slot] = first + row + 1
        elif first + row + 1 < values[slot]:
            values[slot] = first + row + 1
        row += 1
    state[0], state[1] = row, used
    return row


@njit(cache=True, nogil=True)
def _refill(old_keys: np.ndarray, old_values: np.ndarray, keys: np.ndarray, values: np.ndarray) -> None:
    bits = np.int64(np.log2(keys.size) + 0.5)
    wrap = keys.size - 1
    for old in range(old_keys.size):
        if old_values[old] != 0:
            slot = _slot(old_keys[old], bits)
            while values[slot] != 0:
                slot = (slot + 1) & wrap
            keys[slot] = old_keys[old]
            values[slot] = old_values[old]


class TokenTable:
    """Tokens of one feature with a value each: a count, or 1 + the first position. Grows by doubling."""

    def __init__(self) -> None:
        self._allocate(FIRST_BITS)
        self.entries = 0

    @property
    def bytes(self) -> int:
        """Memory of the table."""
        return SLOT_BYTES * self._keys.size

    def bytes_with(self, rows: int) -> int:
        """Memory while ``rows`` more tokens come in, all of them new: the table, and the one it outgrows."""
        slots = self._keys.size
        if self.entries + rows < LOAD * slots:
            return SLOT_BYTES * slots
        while self.entries + rows >= LOAD * slots:
            slots *= 2
        return SLOT_BYTES * (slots + slots // 2)

    def _allocate(self, bits: int) -> None:
        self._keys = np.zeros(1 << bits, dtype=np.uint32)
        self._values = np.zeros(1 << bits, dtype=np.int64)

    def _grow(self) -> None:
        keys, values = self._keys, self._values
        self._allocate(keys.size.bit_length())
        _refill(keys, values, self._keys, self._values)

    def _fill(self, rows: int, step: object) -> None:
        state = np.array([0, self.entries, 0], dtype=np.int64)
        while True:
            state[2] = int(LOAD * self._keys.size)
            reached = step(self._keys, self._values, state)  # type: ignore[operator]
            self.entries = int(state[1])
            if reached >= rows:
                return
            self._grow()

    def add(self, tokens: np.ndarray, absent: np.ndarray) -> None:
        """Count ``tokens`` uint32 (rows,) where not ``absent`` bool (rows,)."""
        self._fill(len(tokens), lambda keys, values, state: _add(tokens, absent, keys, values, state))

    def note_first(self, tokens: np.ndarray, first: int) -> None:
        """Remember each token's least position; row r of ``tokens`` is at ``first + r``."""
        self._fill(len(tokens), lambda keys, values, state: _note_first(tokens, first, keys, values, state))

    def drain(self) -> tuple[np.ndarray, np.ndarray]:
        """Empty the table: (tokens uint32 ascending, values int64)."""
        taken = self._values != 0
        tokens, values = self._keys[taken], self._values[taken]
        self._allocate(FIRST_BITS)
        self.entries = 0
        order = np.argsort(tokens)
        return tokens[order], values[order]


@njit(cache=True, nogil=True)
def _build(tokens: np.ndarray, first_id: int, table: np.ndarray) -> None:
    bits = np.int64(np.log2(table.size) + 0.5)
    wrap = table.size - 1
    for i in range(tokens.size):
        slot = _slot(tokens[i], bits)
        while table[slot] != 0:
            slot = (slot + 1) & wrap
        table[slot] = (np.uint64(tokens[i]) << np.uint64(32)) | np.uint64(first_id + i + 1)


def lookup_table(tokens: np.ndarray, first_id: int) -> np.ndarray:
    """A table uint64 (slots,) from which ``look_up`` finds ids: ``tokens[i]`` has id ``first_id + i``."""
    slots = 1 << max(4, int(len(tokens) / LOAD).bit_length())
    table = np.zeros(slots, dtype=np.uint64)
    _build(tokens, first_id, table)
    table.flags.writeable = False
    return table


@njit(cache=True, nogil=True)
def _look_up(
    tokens: np.ndarray, missing: np.ndarray, bit: int, table: np.ndarray, reserved: tuple[int, int], ids: np.ndarray
) -> None:
    bits = np.int64(np.log2(table.size) + 0.5)
    wrap = table.size - 1
    for row in range(tokens.size):
        if bit >= 0 and (missing[row] >> bit) & 1:
            ids[row] = reserved[0]
            continue
        token = np.uint64(tokens[row])
        slot = _slot(token, bits)
        while table[slot] != 0 and table[slot] >> np.uint64(32) != token:
            slot = (slot + 1) & wrap
        entry = table[slot]
        ids[row] = np.int32((entry & np.uint64(0xFFFFFFFF)) - np.uint64(1)) if entry != 0 else reserved[1]


def look_up(tokens: np.ndarray, missing: np.ndarray, tables: Sequence[np.ndarray], *, reserved: bool) -> np.ndarray:
    """Ids int32 (rows, 26) of ``tokens`` uint32 (26, rows). With ``reserved`` 0 is missing and 1 unseen; otherwise a
    missing token is token 0 and an unseen one gets -1."""
    ids = np.empty((tokens.shape[1], SPARSE_FEATURES), dtype=np.int32)
    for f, table in enumerate(tables):
        bit = DENSE_FEATURES + f if reserved else -1
        _look_up(tokens[f], missing, bit, table, (MISSING_ID, RARE_ID if reserved else -1), ids[:, f])
    return ids
