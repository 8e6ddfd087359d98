"""Open-addressing hash tables over tokens, compiled: counts of tokens in pass 1, their ids in pass 2.

A table is an array (slots, 2) of tokens and their values, of the tokens' own type, uint32 or uint64. A slot whose value
is 0 is free. A count per token in Python costs twenty times as much.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import DTypeLike

from data_prep.raw.parser import Integer
from data_prep.rows import Tokens
from ssmpi.data.schema import MISSING_ID, RARE_ID
from ssmpi.runtime.compiled.cache_lines import ask, ask_to_write
from ssmpi.runtime.compiled.jit import njit

FIRST_SLOTS = 1 << 10
COUNT_LOAD, LOOKUP_LOAD = 0.6, 0.75  # of tables that grow, and of those that do not
LARGE = 1 << 14  # slots of a table that is larger than the first cache
TOGETHER = 64  # rows whose slots are prefetched together when they are counted
AHEAD = 16  # rows between the one being looked up and the one whose slot is prefetched
HALF = np.uint64(32)
MIX = np.uint64(0x9E3779B97F4A7C15)
DIGIT_BITS = 11  # of a radix sort
LAYOUT = "pairs"  # of a lookup table in a file, where a killed job of another version may have left another one


@njit(cache=True, nogil=True)
def home_slot(token: Integer, factor: np.uint64, slots: Integer) -> Integer:
    """The home slot of a token in a table of any size: multiplicative (Fibonacci) hashing, or with factor 1 the upper
    half of what is a hash already, scaled.
    """
    return np.int64(((np.uint64(token) * factor) >> HALF) * np.uint64(slots) >> HALF)


@njit(cache=True, nogil=True)
def slot_of(token: Integer, factor: np.uint64, table: np.ndarray) -> Integer:
    """The slot of a token, or the free one where it belongs."""
    slot = home_slot(token, factor, table.shape[0])
    while table[slot, 0] != token and table[slot, 1] != 0:  # a free slot may pass for that of token 0: it belongs there
        slot = slot + 1 if slot + 1 < table.shape[0] else 0
    return slot


@njit(cache=True, nogil=True)
def _count(
    tokens: np.ndarray,
    missing: np.ndarray,
    bit: int,
    times: np.ndarray,
    factor: np.uint64,
    table: np.ndarray,
    state: np.ndarray,
) -> None:
    """Count tokens from row ``state[0]`` on until done or the table is full at ``state[2]`` entries.

    ``state`` int64: next row, entries, limit. Rows whose ``missing`` has ``bit`` set are skipped. Token i is counted
    ``times[i]`` times, int64, or once each if that is empty. The slots of some rows are prefetched in a large table.
    """
    row, used, limit = state[0], state[1], state[2]
    while row < tokens.size and used < limit:
        stop = min(row + TOGETHER, tokens.size)
        if table.shape[0] >= LARGE:
            for ahead in tokens[row:stop]:
                ask_to_write(np.uint64(table[home_slot(ahead, factor, table.shape[0]) :].ctypes.data))  # type: ignore[call-arg]  # numba gives the first
        while row < stop and used < limit:
            often = times[row] if times.size else 1
            if often and not (missing[row] >> bit) & 1:
                slot = slot_of(tokens[row], factor, table)
                if table[slot, 1] == 0:
                    table[slot, 0] = tokens[row]
                    used += 1
                table[slot, 1] += np.uint64(often)
            row += 1
    state[0], state[1] = row, used


@njit(cache=True, nogil=True)
def _enter(tokens: np.ndarray, values: np.ndarray, factor: np.uint64, table: np.ndarray) -> None:
    """Put tokens that are not in the table there, those with values above 0."""
    for i in range(tokens.size):
        if values[i] != 0:
            slot = slot_of(tokens[i], factor, table)
            table[slot, 0], table[slot, 1] = tokens[i], values[i]


@njit(cache=True, nogil=True)
def _entries(table: np.ndarray, entries: np.ndarray) -> None:
    """Copy the entries of a table to ``entries`` (entries, 2). A mask of NumPy takes ten times as long."""
    used = 0
    for slot in range(table.shape[0]):
        if table[slot, 1] != 0:
            entries[used, 0], entries[used, 1] = table[slot, 0], table[slot, 1]
            used += 1


@njit(cache=True, nogil=True)
def _by_token(entries: np.ndarray) -> np.ndarray:
    """Entries in the order of their tokens, by radix; ``entries`` is overwritten."""
    other, digits = np.empty_like(entries), 1 << DIGIT_BITS
    for shift in range(0, 8 * entries.itemsize, DIGIT_BITS):
        starts = np.zeros(digits + 1, np.int64)
        for i in range(entries.shape[0]):
            starts[((np.uint64(entries[i, 0]) >> np.uint64(shift)) & np.uint64(digits - 1)) + np.uint64(1)] += 1
        if starts.max() == entries.shape[0]:
            continue  # all have the same digit
        starts = np.cumsum(starts)
        for i in range(entries.shape[0]):
            digit = (np.uint64(entries[i, 0]) >> np.uint64(shift)) & np.uint64(digits - 1)
            other[starts[digit], 0], other[starts[digit], 1] = entries[i, 0], entries[i, 1]
            starts[digit] += 1
        entries, other = other, entries
    return entries


@njit(cache=True, nogil=True)
def _ascending(table: np.ndarray, entries: np.ndarray) -> None:
    """Copy the entries of a table that was filled with factor 1, in the order of their tokens: they nearly ascend as
    they lie, but for those that had no room at its end and lie before the first free slot.
    """
    slots, free, used = table.shape[0], 0, 0
    while table[free, 1] != 0:
        free += 1
    for step in range(slots + free):
        slot = step if step < slots else step - slots
        token, count = table[slot, 0], table[slot, 1]
        beyond = slot < free and home_slot(token, np.uint64(1), slots) > slot
        if count == 0 or beyond != (step >= slots):
            continue
        at = used
        while at > 0 and entries[at - 1, 0] > token:
            entries[at, 0], entries[at, 1] = entries[at - 1, 0], entries[at - 1, 1]
            at -= 1
        entries[at, 0], entries[at, 1] = token, count
        used += 1


class CountTable:
    """How often each token of one feature comes; missing ones are skipped. Grows by doubling. Of tokens uint32 it takes
    2**32 - 1 rows between two drains. Tokens uint64 that are ``hashes``, evenly spread, lie in their order: growing and
    draining the table then goes through memory once, and nothing has to be sorted.
    """

    def __init__(self, token_type: DTypeLike, *, hashes: bool = False) -> None:
        self._type, self._factor = np.dtype(token_type), np.uint64(1) if hashes else MIX
        self._empty(FIRST_SLOTS)

    def _empty(self, slots: int) -> None:
        self.entries, self._table = 0, np.zeros((slots, 2), self._type)

    def bytes_with(self, rows: int) -> int:
        """Memory needed to add ``rows`` tokens, all of them new: the table and its smaller predecessor."""
        slots, slot_bytes = len(self._table), 2 * self._type.itemsize
        if self.entries + rows < COUNT_LOAD * slots:
            return slot_bytes * slots
        while self.entries + rows >= COUNT_LOAD * slots:
            slots *= 2
        return slot_bytes * (slots + slots // 2)

    def count(self, tokens: Tokens) -> None:
        """Add tokens."""
        what = tokens.values, tokens.missing, tokens.bit, tokens.times, self._factor
        state = np.array([0, self.entries, 0], dtype=np.int64)
        while state[0] < len(tokens.values):
            state[2] = int(COUNT_LOAD * len(self._table))
            _count(*what, self._table, state)
            if state[0] < len(tokens.values):
                old = self._table
                self._empty(2 * len(old))
                _enter(old[:, 0], old[:, 1], self._factor, self._table)
        self.entries = int(state[1])

    def drain(self) -> tuple[np.ndarray, np.ndarray]:
        """Empty the table: (tokens ascending, counts int64)."""
        entries = np.empty((self.entries, 2), self._type)
        if self._factor == 1:
            _ascending(self._table, entries)
        else:
            _entries(self._table, entries)
            entries = _by_token(entries)
        self._empty(FIRST_SLOTS)
        return np.ascontiguousarray(entries[:, 0]), entries[:, 1].astype(np.int64)


def _slots(tokens: int) -> int:
    return int(tokens / LOOKUP_LOAD) + 1


def lookup_bytes(tokens: int) -> int:
    """The most bytes of a table of so many tokens."""
    return 16 * _slots(tokens)


def lookup_table(tokens: np.ndarray, first_id: int) -> np.ndarray:
    """A table for ``look_up``: ``tokens[i]`` has id ``first_id + i``, and so the value 1 more."""
    table: np.ndarray = np.zeros((_slots(len(tokens)), 2), dtype=tokens.dtype)
    _enter(tokens, np.arange(first_id + 1, first_id + 1 + len(tokens), dtype=tokens.dtype), MIX, table)
    table.flags.writeable = False
    return table


@njit(cache=True, nogil=True)
def _look_up(tokens: np.ndarray, missing: np.ndarray, bit: int, table: np.ndarray, ids: np.ndarray) -> None:
    for row in range(tokens.size):
        if row + AHEAD < tokens.size:
            ask(np.uint64(table[home_slot(tokens[row + AHEAD], MIX, table.shape[0]) :].ctypes.data))  # type: ignore[call-arg]
        if (missing[row] >> bit) & 1:
            ids[row] = MISSING_ID
            continue
        value = table[slot_of(tokens[row], MIX, table), 1]
        ids[row] = np.int64(value) - 1 if value != 0 else RARE_ID


def look_up(tokens: Tokens, table: np.ndarray) -> np.ndarray:
    """Ids int32 (rows,): 0 missing, 1 unseen."""
    ids = np.empty(len(tokens.values), dtype=np.int32)
    _look_up(tokens.values, tokens.missing, tokens.bit, table, ids)
    return tokens.by_row(ids)
