"""The map from 64-bit keys to rows of a keyed table, compiled and run without the GIL.

A map is open addressing over ``slots`` int64 (2 * a power of two,): key and row of each slot side by side, so that a
probe reads one cache line. Key 0 marks a free slot: it means a missing value and is never in a map. One thread inserts
while others look up: an entry's row is stored before its key, so that they see whole entries. Nothing is removed: when
rows are freed, the map is filled anew while nobody reads it. A table that grows fills a larger map behind the one that
others read, and then stores the SLOTS of its head, by which they find it (``key_layout``).
"""

from __future__ import annotations

import math

import numpy as np
from numba import uint64

from ssmpi.compiled import atomic
from ssmpi.compiled.jit import njit
from ssmpi.embedding.kernels import initial_rows, mix

RESERVED = 2  # rows at the beginning of each keyed table: ids 0, missing, and 1, shared by keys without a row
SHARED_ID = 1
NOT_FOUND = -1
SEEN = -(2**63)  # date of a row that was looked up since the last pause; those of an earlier run may be below 0

# Words of a keyed table's head
CURSOR, END, USED, ADMITTED, EXPIRED, EVICTED, REFUSED, COUNTED = range(8)
SLOTS, ROOM, SIGHTING_SLOTS = range(8, 11)  # of the map; rows there is memory for; in a line that changes seldom
HEAD = 16


@njit(cache=True, nogil=True)
def owner_of(key: int, servers: int) -> int:
    """The PS of a key: by other bits than its slot."""
    return np.int64((mix(uint64(key)) >> uint64(33)) % uint64(servers))  # type: ignore[return-value]  # as numba has it


@njit(cache=True, nogil=True)
def owners_of(keys: np.ndarray, servers: int) -> np.ndarray:
    """The PS of each of ``keys`` int64 (n,), int64."""
    found = np.empty(keys.size, np.int64)
    for i in range(keys.size):
        found[i] = owner_of(keys[i], servers)
    return found


@njit(cache=True, nogil=True)
def find(slots: np.ndarray, key: int) -> int:
    """The row of ``key``, or NOT_FOUND. May run while another thread inserts."""
    mask, base = slots.size // 2 - 1, slots.ctypes.data
    slot = np.int64(mix(uint64(key)) & uint64(mask))
    while True:
        there: int = atomic.load_word(base + 16 * slot)  # type: ignore[call-arg]  # numba gives the first
        if there == key:
            return slots[2 * slot + 1]
        if there == 0:
            return NOT_FOUND
        slot = (slot + 1) & mask


@njit(cache=True, nogil=True)
def slots_of(maps: np.ndarray) -> np.ndarray:
    """The slots int64 (2 * SLOTS,) of the map to read now, of a table's head with all its ``maps``."""
    count: int = atomic.load_word(maps.ctypes.data + 8 * SLOTS)  # type: ignore[call-arg]  # numba gives the first
    return maps[HEAD + 2 * count : HEAD + 4 * count]


@njit(cache=True, nogil=True)
def grow_map(maps: np.ndarray, keys: np.ndarray, count: int) -> None:
    """Fill a map of ``count`` slots from the key of each row, then let it be read. Its memory may hold anything."""
    refill(maps[HEAD + 2 * count : HEAD + 4 * count], keys)
    atomic.store_word(maps.ctypes.data + 8 * SLOTS, count)  # type: ignore[call-arg]


@njit(cache=True, nogil=True)
def grow_sightings(sightings: np.ndarray, head: np.ndarray, count: int) -> None:
    """Copy the sightings to ``count`` slots, where anything may lie, then let them count: only then those are true."""
    before, after = sightings[2 * head[SIGHTING_SLOTS] :][: 2 * head[SIGHTING_SLOTS]], sightings[2 * count : 4 * count]
    after[:] = 0
    mask = count - 1
    for old in range(0, before.size, 2):
        if before[old] != 0:
            slot = np.int64(mix(uint64(before[old])) & uint64(mask))
            while after[2 * slot] != 0:
                slot = (slot + 1) & mask
            after[2 * slot], after[2 * slot + 1] = before[old], before[old + 1]
    atomic.store_word(head.ctypes.data + 8 * SIGHTING_SLOTS, count)  # type: ignore[call-arg]


@njit(cache=True, nogil=True)
def insert(slots: np.ndarray, key: int, row: int) -> None:
    """Add a key that is not there."""
    mask = slots.size // 2 - 1
    slot = np.int64(mix(uint64(key)) & uint64(mask))
    while slots[2 * slot] != 0:
        slot = (slot + 1) & mask
    slots[2 * slot + 1] = row
    atomic.store_word(slots.ctypes.data + 16 * slot, key)  # type: ignore[call-arg]  # numba gives the first


@njit(cache=True, nogil=True)
def refill(slots: np.ndarray, keys: np.ndarray) -> int:
    """Make the map anew from the key of each row, 0 where a row is free. Returns how many rows are in use."""
    slots[:] = 0
    used = 0
    for row in range(RESERVED, keys.size):
        if keys[row] != 0:
            insert(slots, keys[row], row)
            used += 1
    return used


@njit(cache=True, nogil=True)
def count(candidates: np.ndarray, head: np.ndarray, key: int, times: int) -> int:
    """Add ``times`` sightings of a key without a row; all its sightings. Nothing is counted, and 0 returned, for a new
    key if half of the slots are taken.
    """
    mask = candidates.size // 2 - 1
    slot = np.int64(mix(uint64(key)) & uint64(mask))
    while candidates[2 * slot] != 0 and candidates[2 * slot] != key:
        slot = (slot + 1) & mask
    if candidates[2 * slot] == 0:
        if 2 * head[COUNTED] > mask:
            return 0
        head[COUNTED] += 1
        candidates[2 * slot] = key
    candidates[2 * slot + 1] += times
    return candidates[2 * slot + 1]


@njit(cache=True, nogil=True)
def forget(candidates: np.ndarray, key: int) -> None:
    """A key has a row now: its sightings count from 0 if it loses it."""
    mask = candidates.size // 2 - 1
    slot = np.int64(mix(uint64(key)) & uint64(mask))
    while candidates[2 * slot] != 0 and candidates[2 * slot] != key:
        slot = (slot + 1) & mask
    if candidates[2 * slot] == key:
        candidates[2 * slot + 1] = 0


@njit(cache=True, nogil=True)
def lookups_wanted(key: int, rule: tuple[int, float], seed: int, table: int) -> int:
    """At which of its lookups a key gets a row. With a chance below 1 that is the first success of independent trials,
    one a lookup: geometric, by inversion of a uniform number that follows from seed, table and key alone, so that
    neither the number of PSs nor the order in which keys come matters.
    """
    after, chance = rule
    if chance >= 1.0:
        return after
    draw = mix(mix(mix(uint64(seed)) ^ uint64(table)) ^ mix(uint64(key))) >> uint64(11)
    uniform = (np.float64(draw) + 0.5) / 9007199254740992.0  # 2^53: in (0, 1)
    return 1 + np.int64(math.log(uniform) / math.log1p(-chance))  # type: ignore[return-value]  # as numba has it


@njit(cache=True, nogil=True)
def free_row(head: np.ndarray, keys: np.ndarray) -> int:
    """The first free row from the cursor on, or NOT_FOUND."""
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
    weights: np.ndarray, state: np.ndarray, row: int, key: int, start: tuple[int, int, int, float, float]
) -> None:
    """Initial values of a key's row: ``start`` is seed, table, floats of the vector, bound, initial state."""
    seed, table, vector, bound, initial = start
    initial_rows(weights[row : row + 1, :vector], seed, table, (key, 1), bound)
    weights[row, vector:] = 0.0
    state[row : row + 1] = np.float32(initial)


@njit(cache=True, nogil=True)
def resolve(
    tables: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray], rows: tuple[np.ndarray, np.ndarray],
    asked: np.ndarray, times: np.ndarray, rule: tuple[int, float], start: tuple[int, int, int, float, float],
    out: np.ndarray,
) -> None:  # fmt: skip
    """Find the row of each of ``asked`` int64 (n,), seen ``times`` int64 (n,), or give it one, as the ``rule`` says
    (sightings, chance); ``out`` int64 (n,): rows, NOT_FOUND for the shared one. ``times`` 0 only looks up.

    The ``tables`` are head, slots, keys, seen, candidates; ``rows`` weights (rows, width) and state (rows, groups).
    Values and date are written before the key of a row, and that before its slot: a kill in between leaves a free row,
    or a key that ``refill`` finds.
    """
    head, slots, keys, seen, candidates = tables
    weights, state = rows
    for i in range(asked.size):
        key, row = asked[i], find(slots, asked[i])
        out[i] = row
        if times[i] == 0:
            continue
        if row != NOT_FOUND:
            seen[row] = SEEN
            continue
        wanted = lookups_wanted(key, rule, start[0], start[1])
        if wanted > 1 and count(candidates, head, key, times[i]) < wanted:
            continue
        row = free_row(head, keys)
        if row == NOT_FOUND:
            head[REFUSED] += 1
            continue
        begin_row(weights, state, row, key, start)
        seen[row] = SEEN
        atomic.store_word(keys.ctypes.data + 8 * row, key)  # type: ignore[call-arg]
        insert(slots, key, row)
        head[USED] += 1
        head[ADMITTED] += 1
        if wanted > 1:
            forget(candidates, key)
        out[i] = row


@njit(cache=True, nogil=True)
def age(keys: np.ndarray, seen: np.ndarray, now: int, most: int) -> int:
    """Date the rows that were looked up since the last pause, and free those not seen for more than ``most`` examples,
    0 for none. Returns how many.
    """
    freed = 0
    for row in range(RESERVED, keys.size):
        if keys[row] == 0:
            continue
        if seen[row] == SEEN:
            seen[row] = now
        elif most > 0 and now - seen[row] > most:
            keys[row] = 0
            freed += 1
    return freed


def powers(rows: int) -> int:
    """Slots for so many keys: a power of two, at most half of them taken."""
    return 1 << max(4, (2 * rows - 1).bit_length())
