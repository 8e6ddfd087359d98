"""Decides which keys get rows, compiled and run without the GIL: one call for all tables of an embedding PS. After some
training few requested keys lack a row.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import uint64

from ssmpi.embedding.kernels import initial_rows
from ssmpi.embedding.key_kernels import (
    ADMITTED,
    COUNTED,
    CURSOR,
    END,
    REFUSED,
    RESERVED,
    ROOM,
    SEEN,
    SHARED_ID,
    SIGHTING_SLOTS,
    USED,
    see,
    slots_of,
)  # fmt: skip
from ssmpi.runtime.compiled import atomic
from ssmpi.runtime.compiled.cache_lines import ask_for_bytes, ask_to_write
from ssmpi.runtime.compiled.hash_table import NOT_FOUND, ask_for_slot, find, insert, mix, slot_of
from ssmpi.runtime.compiled.jit import njit
from ssmpi.runtime.compiled.kernel_args import array_at

# Places in the words of a table: head with maps, keys, dates and sightings; weights and state; of its rule sightings
# with seed, table, floats of the vector and the most keys, and chance with bound and initial state
MAPS, KEYS, DATES, SIGHTINGS, WEIGHTS, STATE, NUMBERS, FRACTIONS, WORDS = range(0, 18, 2)


@njit(cache=True, nogil=True)
def count(candidates: np.ndarray, head: np.ndarray, key: int, times: int) -> int:
    """Add ``times`` sightings of a key without a row; all its sightings. Nothing is counted, and 0 returned, for a new
    key if half of the slots are taken.
    """
    slot = slot_of(candidates, key)
    if candidates[2 * slot] == 0:
        if 4 * head[COUNTED] >= candidates.size:
            return 0
        head[COUNTED] += 1
        candidates[2 * slot] = key
    candidates[2 * slot + 1] += times
    return candidates[2 * slot + 1]


@njit(cache=True, nogil=True)
def forget(candidates: np.ndarray, key: int) -> None:
    """A key has a row now: its sightings count from 0 if it loses it."""
    slot = slot_of(candidates, key)
    if candidates[2 * slot] == key:
        candidates[2 * slot + 1] = 0


@njit(cache=True, nogil=True)
def lookups_wanted(key: int, after: int, chance: float, seed: int, table: int) -> int:
    """At which of its lookups a key gets a row. With a chance below 1 that is the first success of independent trials,
    one a lookup: geometric, by inversion of a uniform number that follows from seed, table and key alone, so that
    neither the number of PSs nor the order in which keys come matters.
    """
    if chance >= 1.0:
        return after
    draw = mix(mix(mix(uint64(seed)) ^ uint64(table)) ^ mix(uint64(key))) >> uint64(11)
    uniform = (np.float64(draw) + 0.5) / 9007199254740992.0  # 2^53: in (0, 1)
    return 1 + np.int64(math.log(uniform) / math.log1p(-chance))  # type: ignore[return-value]  # as numba has it


@njit(cache=True, nogil=True)
def free_row(head: np.ndarray, keys: np.ndarray) -> int:
    """The first free row from the cursor on, or NOT_FOUND: ``keys`` are those of rows that there is memory for."""
    row = max(head[CURSOR], RESERVED)
    while row < head[END] and keys[row] != 0:
        row += 1
    head[CURSOR] = row
    if row >= keys.size:
        return NOT_FOUND
    head[END] = max(head[END], row + 1)  # before the row has a key
    return row


@njit(cache=True, nogil=True)
def begin_row(
    weights: np.ndarray, state: np.ndarray, row: int, key: int, seed: int, table: int, vector: int, bound: float,
    initial: float,
) -> None:  # fmt: skip
    """Initial values of a key's row: so many floats of a ``vector`` up to the ``bound``, and the state."""
    initial_rows(weights[row : row + 1, :vector], seed, table, key, 1, bound)
    weights[row, vector:] = 0  # in all types
    state[row : row + 1] = np.float32(initial)


@njit(cache=True, nogil=True)
def look_up(tables: np.ndarray, asked: np.ndarray, rows: np.ndarray, short: np.ndarray, like: Any) -> int:
    """Write the rows of what is ``asked``, int64 (n, 3): key, number of the table, and how often it is looked up now,
    in the order of tables, to ``rows`` int64 (n,): NOT_FOUND without one. Rows that are looked up are dated.

    ``tables`` are the words of each, ``like`` a number of the type of their rows. ``short`` int64 (tables,) gets how
    many keys may get a row now, of tables that have no room for so many; 0 of others. Returns how many they are of all,
    or -1 if a table is not there or not in order.
    """
    start, missed = 0, 0
    for table in range(short.size):
        end = start
        while end < len(asked) and asked[end, 1] == table:
            end += 1
        new = _look_up(tables[WORDS * table :], asked[start:end], rows[start:end], like)
        head, short[table] = array_at(tables, WORDS * table + MAPS, np.int64), 0
        if head[USED] + RESERVED + new > head[ROOM] or 2 * (head[COUNTED] + new) > head[SIGHTING_SLOTS] > 0:
            short[table] = new
        start, missed = end, missed + new
    return missed if start == len(asked) else -1


@njit(cache=True, nogil=True)
def _look_up(table: np.ndarray, asked: np.ndarray, rows: np.ndarray, like: Any) -> int:
    """As ``look_up``, of one table; how many keys may get a row."""
    slots, seen = slots_of(array_at(table, MAPS, np.int64)), array_at(table, DATES, np.int64)
    new = 0
    weights = array_at(table, WEIGHTS, like)
    row_bytes = weights.itemsize * weights.size // table[KEYS + 1]
    for i in range(rows.size):
        ask_for_slot(slots, asked[i, 0])
    for i in range(rows.size):
        rows[i] = find(slots, asked[i, 0])
        if rows[i] != NOT_FOUND:
            ask_to_write(uint64(seen.ctypes.data + 8 * rows[i]))  # type: ignore[call-arg]
    for i in range(rows.size):
        if rows[i] != NOT_FOUND:
            ask_for_bytes(table[WEIGHTS] + rows[i] * row_bytes, row_bytes)
        if asked[i, 2] == 0:
            continue
        if rows[i] == NOT_FOUND:
            new += 1
        else:
            see(seen, rows[i])
    return new


@njit(cache=True, nogil=True)
def admit(tables: np.ndarray, asked: np.ndarray, rows: np.ndarray, like: Any) -> None:
    """After ``look_up``, with the same arguments: give rows to keys without one, as the rules of their tables say."""
    start = 0
    while start < len(asked):
        end = start
        while end < len(asked) and asked[end, 1] == asked[start, 1]:
            end += 1
        _admit(tables[WORDS * asked[start, 1] :], asked[start:end], rows[start:end], like)
        start = end


@njit(cache=True, nogil=True)
def _admit(table: np.ndarray, asked: np.ndarray, rows: np.ndarray, like: Any) -> None:
    """As ``admit``, of one table. Values and date are written before the key of a row, and that before its slot: a kill
    in between leaves a free row, or a key that ``refill`` finds.
    """
    maps, keys = array_at(table, MAPS, np.int64), array_at(table, KEYS, np.int64)
    weights, state = array_at(table, WEIGHTS, like), array_at(table, STATE, np.float32)
    weights = weights.reshape(keys.size, weights.size // keys.size)
    state = state.reshape(keys.size, state.size // keys.size)
    numbers, fractions = array_at(table, NUMBERS, np.int64), array_at(table, FRACTIONS, np.float64)
    after, seed, number, vector, most = numbers
    chance, bound, initial = fractions
    head, slots, seen, there = maps, slots_of(maps), array_at(table, DATES, np.int64), keys[: maps[ROOM]]
    counters = head[SIGHTING_SLOTS]
    candidates = array_at(table, SIGHTINGS, np.int64)[2 * counters : 4 * counters]
    for i in range(rows.size):
        key, times = asked[i, 0], asked[i, 2]
        if rows[i] != NOT_FOUND or times == 0:
            continue
        rows[i] = find(slots, key)  # it may be asked for twice
        if rows[i] != NOT_FOUND:
            continue
        wanted = lookups_wanted(key, after, chance, seed, number)
        if wanted > 1 and count(candidates, head, key, times) < wanted:
            continue
        row = free_row(head, there) if head[USED] < most else NOT_FOUND
        if row == NOT_FOUND:
            head[CURSOR] = head[ROOM]  # by which the next pause knows
            head[REFUSED] += 1
            continue
        begin_row(weights, state, row, key, seed, number, vector, bound, initial)
        seen[row] = SEEN
        atomic.store_word(keys.ctypes.data + 8 * row, key)  # type: ignore[call-arg]  # numba gives the first
        insert(slots, key, row)
        head[USED] += 1
        head[ADMITTED] += 1
        if wanted > 1:
            forget(candidates, key)
        rows[i] = row


@njit(cache=True, nogil=True)
def ids_of(rows: np.ndarray, server: int, servers: int, out: np.ndarray) -> None:
    """Write the ids of rows of keys, int64 (n,), to ``out`` int32 (n,), on this one of all PSs."""
    for i in range(rows.size):
        out[i] = SHARED_ID if rows[i] == NOT_FOUND else rows[i] * servers + server


@njit(cache=True, nogil=True)
def places_of(rows: np.ndarray, asked: np.ndarray, bases: np.ndarray, out: np.ndarray) -> None:
    """Write where the ``rows`` of what is ``asked``, counted from the bases of their tables, lie among all rows to
    ``out`` int32 (n,); the table's first, where there is none.
    """
    for i in range(rows.size):
        out[i] = bases[asked[i, 1]] + max(rows[i], 0)
