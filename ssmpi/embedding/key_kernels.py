"""The map from 64-bit keys to rows of a keyed table, compiled and run without the GIL.

A map is a ``hash_table`` of keys and rows: key 0 means a missing value and is never in it. When rows are freed, it is
filled anew while nobody reads it. A table that grows fills a larger map behind the one that others read, and then
stores the SLOTS of its head, by which they find it (``keyed_memory``).
"""

from __future__ import annotations

import numpy as np
from numba import uint64

from ssmpi.runtime.compiled import atomic
from ssmpi.runtime.compiled.hash_table import insert, mix, slot_of
from ssmpi.runtime.compiled.jit import njit

RESERVED = 2  # rows at the beginning of each keyed table: ids 0, missing, and 1, shared by keys without a row
SHARED_ID = 1
SEEN = -(2**63)  # date of a row that a batch has looked up since the last pause; an earlier run's may be below 0
OFTEN = 7  # it is 1 more for each further batch, up to this
USE, LASTING = 4, 7  # what a batch adds to the use of a row, and how many eighths of it last until the next pause

# Words of a keyed table's head
CURSOR, END, USED, ADMITTED, EXPIRED, EVICTED, REFUSED, COUNTED = range(8)
SLOTS, ROOM, SIGHTING_SLOTS = range(8, 11)  # of the map; rows there is memory for; in a line that changes seldom
HEAD = 16


@njit(cache=True, nogil=True)
def owner_of(key: int, servers: int) -> int:
    """The PS of a key: by other bits than its slot, and without a division (Lemire, ACM TOMACS 29, 2019)."""
    return np.int64(((mix(uint64(key)) >> uint64(33)) * uint64(servers)) >> uint64(31))  # type: ignore[return-value]


@njit(cache=True, nogil=True)
def owners_of(keys: np.ndarray, servers: int) -> np.ndarray:
    """The PS of each of ``keys`` int64 (n,), int64."""
    found = np.empty(keys.size, np.int64)
    for i in range(keys.size):
        found[i] = owner_of(keys[i], servers)
    return found


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
    for old in range(0, before.size, 2):
        if before[old] != 0:
            slot = slot_of(after, before[old])
            after[2 * slot], after[2 * slot + 1] = before[old], before[old + 1]
    atomic.store_word(head.ctypes.data + 8 * SIGHTING_SLOTS, count)  # type: ignore[call-arg]


@njit(cache=True, nogil=True)
def refill(slots: np.ndarray, keys: np.ndarray) -> int:
    """Make the map anew from the key of each row, 0 where a row is free. Returns how many rows are in use. Of two rows
    with the same key, which a kill leaves where one was moved (``key_moves``), the second is freed.
    """
    slots[:] = 0
    used = 0
    for row in range(RESERVED, keys.size):
        if keys[row] == 0:
            continue
        if slots[2 * slot_of(slots, keys[row])] != 0:
            keys[row] = 0
        else:
            insert(slots, keys[row], row)
            used += 1
    return used


@njit(cache=True, nogil=True)
def see(seen: np.ndarray, row: int) -> None:
    """A batch looks up a row, which is written only if that changes its date: other processes may have the line."""
    date = seen[row]
    if date != SEEN + OFTEN:
        seen[row] = SEEN if date > SEEN + OFTEN else date + 1


@njit(cache=True, nogil=True)
def age(keys: np.ndarray, seen: np.ndarray, uses: np.ndarray, now: int, most: int) -> int:
    """Date the rows that were looked up since the last pause, and free those not seen for more than ``most`` examples,
    0 for none. Returns how many. ``uses`` uint8 (rows,), or empty, tell how often each was looked up lately.
    """
    freed = 0
    for row in range(RESERVED, keys.size):
        if uses.size:
            batches = seen[row] - SEEN + 1 if seen[row] <= SEEN + OFTEN else 0
            uses[row] = uses[row] * LASTING // 8 + USE * batches if keys[row] != 0 else 0
        if keys[row] == 0:
            continue
        if seen[row] <= SEEN + OFTEN:
            seen[row] = now
        elif most > 0 and now - seen[row] > most:
            keys[row] = 0
            freed += 1
            if uses.size:
                uses[row] = 0
    return freed
