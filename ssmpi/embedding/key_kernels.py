"""The map from 64-bit keys to rows of a keyed table, compiled and run without the GIL.

A map is open addressing over ``slots`` int64 (2 * a power of two,): key and row of each slot side by side, so that a
probe reads one cache line. Key 0 marks a free slot: it means a missing value and is never in a map. One thread inserts
while others look up: an entry's row is stored before its key, so that they see whole entries. Nothing is removed: when
rows are freed, the map is filled anew while nobody reads it. When a table grows, a map of twice as many slots is filled
behind the last one, and then found by the STEP in its head: who still reads the last one finds what was there.
"""

from __future__ import annotations

import numpy as np
from numba import uint64

from ssmpi.compiled import atomic
from ssmpi.compiled.jit import njit
from ssmpi.embedding.kernels import initial_rows, mix

RESERVED = 2  # rows at the beginning of each keyed table: ids 0, missing, and 1, shared by keys without a row
SHARED_ID = 1
NOT_FOUND = -1
SEEN = -1  # date of a row that was looked up since the last pause

# Words of a keyed table's head
CURSOR, END, USED, ADMITTED, EXPIRED, EVICTED, REFUSED, COUNTED, DRAWS, STEP, FIRST_SLOTS = range(11)
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
def slots_of(map_: np.ndarray) -> np.ndarray:
    """The slots that hold all keys now, of a table's head and maps int64 (n,)."""
    step: int = atomic.load_word(map_.ctypes.data + 8 * STEP)  # type: ignore[call-arg]  # numba gives the first
    size = 2 * map_[FIRST_SLOTS] << step
    start = HEAD + size - 2 * map_[FIRST_SLOTS]
    return map_[start : start + size]


@njit(cache=True, nogil=True)
def grown(map_: np.ndarray, step: int) -> None:
    """From now on the slots of this step, which are filled, hold all keys."""
    atomic.store_word(map_.ctypes.data + 8 * STEP, step)  # type: ignore[call-arg]  # numba gives the first


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
def recount(candidates: np.ndarray, head: np.ndarray, before: np.ndarray) -> None:
    """Fill ``candidates`` anew with the sightings ``before``."""
    candidates[:] = 0
    head[COUNTED] = 0
    for slot in range(before.size // 2):
        if before[2 * slot + 1] > 0:
            count(candidates, head, before[2 * slot], before[2 * slot + 1])


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
def is_admitted(
    candidates: np.ndarray, head: np.ndarray, key: int, times: int, after: int, chance: float, seed: int
) -> bool:
    """Whether a key without a row, seen ``times`` now, gets one: by its number of sightings, or each sighting by
    chance.
    """
    if after > 1 and count(candidates, head, key, times) < after:
        return False
    if chance >= 1.0:
        return True
    for _ in range(times):
        head[DRAWS] += 1
        draw = mix(mix(uint64(seed)) ^ mix(uint64(key)) ^ uint64(head[DRAWS])) >> uint64(11)
        if np.float64(draw) < chance * 9007199254740992.0:  # 2^53
            return True
    return False


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
        if not is_admitted(candidates, head, key, times[i], rule[0], rule[1], start[0]):
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
        if rule[0] > 1:
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
