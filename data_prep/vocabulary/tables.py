"""Open-addressing hash tables over tokens, compiled: counting, or first appearance, in pass 1.

A count per token in Python costs twenty times as much. ``lookup`` has those of pass 2.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import numpy as np

from data_prep.raw.fields import Integer
from data_prep.tokens import Tokens
from ssmpi.runtime.compiled.cache_lines import ask_to_write
from ssmpi.runtime.compiled.jit import njit

FIRST_BITS = 10
LOAD = 0.6
LARGE = 1 << 14
TOGETHER = 64
HALF = np.uint64(32)
MIX = np.uint64(0x9E3779B97F4A7C15)


@njit(cache=True, nogil=True)
def home_slot(token: Integer, bits: Integer, factor: np.uint64 = MIX) -> Integer:
    """The home slot of a token in a table of 2**bits: multiplicative (Fibonacci) hashing, or with factor 1 the upper
    bits of what is a hash already.
    """
    return np.int64((np.uint64(token) * factor) >> np.uint64(64 - bits))


@njit(cache=True, nogil=True)
def slot_of(token: Integer, table: np.ndarray, bits: Integer) -> Integer:
    """The slot of a token in a table of 2**bits, or the free one where it belongs."""
    slot = home_slot(token, bits)
    while table[slot] != 0 and table[slot] >> HALF != token:
        slot = (slot + 1) & (table.size - 1)
    return slot


@njit(cache=True, nogil=True)
def _count(tokens: np.ndarray, missing: np.ndarray, bit: int, table: np.ndarray, state: np.ndarray) -> None:
    """Count tokens from row ``state[0]`` on until done or the table is full at ``state[2]`` entries.

    A slot of ``table`` uint64 is token << 32 | count, 0 when empty. ``state`` int64: next row, entries, limit. Rows
    whose ``missing`` has ``bit`` set are skipped. If the table is larger than the first cache, the slots of some rows
    are prefetched.
    """
    bits = np.int64(np.log2(table.size) + 0.5)
    row, used, limit = state[0], state[1], state[2]
    while row < tokens.size and used < limit:
        stop = min(row + TOGETHER, tokens.size)
        if table.size >= LARGE:
            for ahead in tokens[row:stop]:
                ask_to_write(np.uint64(table[home_slot(ahead, bits) :].ctypes.data))  # type: ignore[call-arg]
        while row < stop and used < limit:
            if not (missing[row] >> bit) & 1:
                token = np.uint64(tokens[row])
                slot = slot_of(token, table, bits)
                entry = table[slot]
                if entry == 0:
                    entry = token << HALF
                    used += 1
                table[slot] = entry + np.uint64(1)
            row += 1
    state[0], state[1] = row, used


@njit(cache=True, nogil=True)
def _rehash(old: np.ndarray, table: np.ndarray) -> None:
    bits = np.int64(np.log2(table.size) + 0.5)
    wrap = table.size - 1
    for entry in old:
        if entry != 0:
            slot = home_slot(entry >> HALF, bits)
            while table[slot] != 0:
                slot = (slot + 1) & wrap
            table[slot] = entry


@njit(cache=True, nogil=True)
def _entries(table: np.ndarray, entries: int) -> np.ndarray:
    """The entries of a table of ``_count``, uint64 (entries,). A mask of NumPy takes ten times as long."""
    found = np.empty(entries + 1, np.uint64)  # the last one takes what is no entry
    used = 0
    for entry in table:
        found[used] = entry
        used += entry != 0
    return found[:entries]


@njit(cache=True, nogil=True)
def _by_token(entries: np.ndarray) -> np.ndarray:
    """Entries of ``_count`` in the order of their tokens, by radix, 11 bits at a time; ``entries`` is overwritten."""
    other = np.empty_like(entries)
    for shift in (HALF, HALF + np.uint64(11), HALF + np.uint64(22)):
        starts = np.zeros(2049, np.int64)
        for entry in entries:
            starts[((entry >> shift) & np.uint64(2047)) + np.uint64(1)] += 1
        starts = np.cumsum(starts)
        for entry in entries:
            digit = (entry >> shift) & np.uint64(2047)
            other[starts[digit]] = entry
            starts[digit] += 1
        entries, other = other, entries
    return entries


@njit(cache=True, nogil=True)
def _count_wide(
    tokens: np.ndarray,
    missing: np.ndarray,
    bit: int,
    times: np.ndarray,
    factor: np.uint64,
    table: np.ndarray,
    state: np.ndarray,
) -> None:
    """As ``_count`` for tokens uint64; a slot of ``table`` uint64 (slots, 2) is token and count, 0 when empty. Token i
    is counted ``times[i]`` times, int64, or once each if that is empty; ``factor``: see ``home_slot``.
    """
    bits = np.int64(np.log2(table.shape[0]) + 0.5)
    wrap = table.shape[0] - 1
    row, used, limit = state[0], state[1], state[2]
    while row < tokens.size and used < limit:
        stop = min(row + TOGETHER, tokens.size)
        if table.shape[0] >= LARGE:
            for ahead in tokens[row:stop]:
                ask_to_write(np.uint64(table[home_slot(ahead, bits, factor) :].ctypes.data))  # type: ignore[call-arg]
        while row < stop and used < limit:
            often = times[row] if times.size else 1
            if often and not (missing[row] >> bit) & 1:
                token = tokens[row]
                slot = home_slot(token, bits, factor)
                while table[slot, 1] != 0 and table[slot, 0] != token:
                    slot = (slot + 1) & wrap
                if table[slot, 1] == 0:
                    table[slot, 0] = token
                    used += 1
                table[slot, 1] += np.uint64(often)
            row += 1
    state[0], state[1] = row, used


@njit(cache=True, nogil=True)
def _rehash_wide(old: np.ndarray, factor: np.uint64, table: np.ndarray) -> None:
    bits = np.int64(np.log2(table.shape[0]) + 0.5)
    wrap = table.shape[0] - 1
    for i in range(old.shape[0]):
        if old[i, 1] != 0:
            slot = home_slot(old[i, 0], bits, factor)
            while table[slot, 1] != 0:
                slot = (slot + 1) & wrap
            table[slot, 0], table[slot, 1] = old[i, 0], old[i, 1]


@njit(cache=True, nogil=True)
def _ascending(table: np.ndarray, tokens: np.ndarray, counts: np.ndarray) -> None:
    """Copy the entries of a table that ``_count_wide`` has filled with factor 1: they nearly ascend as they lie, but
    for those that had no room at its end and lie before the first free slot.
    """
    bits, slots = np.int64(np.log2(table.shape[0]) + 0.5), table.shape[0]
    free = 0
    while table[free, 1] != 0:
        free += 1
    used = 0
    for step in range(slots + free):
        slot = step & (slots - 1)
        token, count = table[slot, 0], table[slot, 1]
        beyond = slot < free and home_slot(token, bits, np.uint64(1)) > slot
        if count == 0 or beyond != (step >= slots):
            continue
        at = used
        while at > 0 and tokens[at - 1] > token:
            tokens[at], counts[at] = tokens[at - 1], counts[at - 1]
            at -= 1
        tokens[at], counts[at] = token, np.int64(count)
        used += 1


@njit(cache=True, nogil=True)
def _note_first(tokens: np.ndarray, first: int, keys: np.ndarray, values: np.ndarray, state: np.ndarray) -> None:
    """As ``_count``, but a token's value is 1 + its lowest position, where row r is at ``first + r``."""
    bits = np.int64(np.log2(keys.size) + 0.5)
    wrap = keys.size - 1
    row, used, limit = state[0], state[1], state[2]
    while row < tokens.size and used < limit:
        token = tokens[row]
        slot = home_slot(token, bits)
        while values[slot] != 0 and keys[slot] != token:
            slot = (slot + 1) & wrap
        if values[slot] == 0:
            keys[slot] = token
            used += 1
            values[slot] = first + row + 1
        else:
            values[slot] = min(values[slot], first + row + 1)
        row += 1
    state[0], state[1] = row, used


@njit(cache=True, nogil=True)
def _refill(old_keys: np.ndarray, old_values: np.ndarray, keys: np.ndarray, values: np.ndarray) -> None:
    bits = np.int64(np.log2(keys.size) + 0.5)
    wrap = keys.size - 1
    for old in range(old_keys.size):
        if old_values[old] != 0:
            slot = home_slot(old_keys[old], bits)
            while values[slot] != 0:
                slot = (slot + 1) & wrap
            keys[slot] = old_keys[old]
            values[slot] = old_values[old]


class TokenTable(ABC):
    """Tokens of one feature with a value each. Grows by doubling."""

    slot_bytes: int

    def __init__(self) -> None:
        self._bits = FIRST_BITS
        self.entries = 0
        self._allocate()

    @abstractmethod
    def _allocate(self) -> None:
        """Make an empty table of 2**bits slots."""

    @abstractmethod
    def _grow(self) -> None:
        """Double the table."""

    @abstractmethod
    def _take(self, tokens: Tokens, position: int) -> Callable[[np.ndarray], None]:
        """A function that fills the current table, given the state described in ``_count``."""

    @abstractmethod
    def _sorted(self) -> tuple[np.ndarray, np.ndarray]:
        """(tokens uint32 ascending, values int64)."""

    def bytes_with(self, rows: int) -> int:
        """Memory needed to add ``rows`` tokens, all of them new: the table and its smaller predecessor."""
        slots = 1 << self._bits
        if self.entries + rows < LOAD * slots:
            return self.slot_bytes * slots
        while self.entries + rows >= LOAD * slots:
            slots *= 2
        return self.slot_bytes * (slots + slots // 2)

    def take(self, tokens: Tokens, position: int) -> None:
        """Add tokens; the first row is at ``position``."""
        state = np.array([0, self.entries, 0], dtype=np.int64)
        while True:
            state[2] = int(LOAD * (1 << self._bits))
            self._take(tokens, position)(state)
            self.entries = int(state[1])
            if state[0] >= len(tokens.values):
                return
            self._bits += 1
            self._grow()

    def drain(self) -> tuple[np.ndarray, np.ndarray]:
        """Empty the table: (tokens uint32 ascending, values int64)."""
        drained = self._sorted()
        self._bits, self.entries = FIRST_BITS, 0
        self._allocate()
        return drained


class CountTable(TokenTable):
    """The number of occurrences of each token; missing ones are skipped. At most 2**32 - 1 rows between two drains."""

    slot_bytes = 8

    def _allocate(self) -> None:
        self._table = np.zeros(1 << self._bits, dtype=np.uint64)

    def _grow(self) -> None:
        old = self._table
        self._allocate()
        _rehash(old, self._table)

    def _take(self, tokens: Tokens, position: int) -> Callable[[np.ndarray], None]:
        return lambda state: _count(tokens.values, tokens.missing, tokens.bit, self._table, state)

    def _sorted(self) -> tuple[np.ndarray, np.ndarray]:
        entries = _by_token(_entries(self._table, self.entries))
        return (entries >> HALF).astype(np.uint32), (entries & np.uint64(0xFFFFFFFF)).astype(np.int64)


class WideCountTable(TokenTable):
    """As ``CountTable``, of tokens uint64. Those that are ``hashes``, evenly spread, lie in their order: growing and
    draining the table then goes through memory once, and nothing has to be sorted.
    """

    slot_bytes = 16

    def __init__(self, *, hashes: bool = False) -> None:
        self._factor = np.uint64(1) if hashes else MIX
        super().__init__()

    def _allocate(self) -> None:
        self._table = np.zeros((1 << self._bits, 2), dtype=np.uint64)

    def _grow(self) -> None:
        old = self._table
        self._allocate()
        _rehash_wide(old, self._factor, self._table)

    def _take(self, tokens: Tokens, position: int) -> Callable[[np.ndarray], None]:
        what = tokens.values, tokens.missing, tokens.bit, tokens.times, self._factor
        return lambda state: _count_wide(*what, self._table, state)

    def _sorted(self) -> tuple[np.ndarray, np.ndarray]:
        if self._factor == 1:
            tokens, counts = np.empty(self.entries, np.uint64), np.empty(self.entries, np.int64)
            _ascending(self._table, tokens, counts)
            return tokens, counts
        entries = self._table[self._table[:, 1] != 0]
        entries = entries[np.argsort(entries[:, 0])]
        return np.ascontiguousarray(entries[:, 0]), entries[:, 1].astype(np.int64)


class FirstTable(TokenTable):
    """1 + the lowest position of each token; a missing one is token 0."""

    slot_bytes = 12

    def _allocate(self) -> None:
        self._keys = np.zeros(1 << self._bits, dtype=np.uint32)
        self._values = np.zeros(1 << self._bits, dtype=np.int64)

    def _grow(self) -> None:
        keys, values = self._keys, self._values
        self._allocate()
        _refill(keys, values, self._keys, self._values)

    def _take(self, tokens: Tokens, position: int) -> Callable[[np.ndarray], None]:
        return lambda state: _note_first(tokens.values, position, self._keys, self._values, state)

    def _sorted(self) -> tuple[np.ndarray, np.ndarray]:
        taken = self._values != 0
        order = np.argsort(self._keys[taken])
        return self._keys[taken][order], self._values[taken][order]
