"""From the keys of a batch to ids, compiled and run without the GIL: its distinct keys, what a trainer finds of them in
mapped maps, and how it groups what it has to ask for.

Arrays by distinct key are int (keyed features, batch): those of a feature begin its line. A feature's keys are looked
up together, so that the table that finds the distinct ones fits in the first cache; only these are looked up in a map,
whose slots are prefetched meanwhile.
"""

from __future__ import annotations

import numpy as np
from numba import uint64

from ssmpi.compiled.cache_lines import ask
from ssmpi.compiled.jit import njit
from ssmpi.compiled.kernel_args import array_at
from ssmpi.embedding.kernels import mix
from ssmpi.embedding.key_kernels import NOT_FOUND, SEEN, SHARED_ID, find, owner_of

GOLDEN = 0x9E3779B97F4A7C15  # 2^64 over the golden ratio (Knuth, TAOCP 3, 6.4)

# Places in the room of a batch: distinct keys, how often each is there, their ids; which one is at each position; the
# table that finds them; which of them are unknown
KNOWN, TIMES, FOUND, PLACES, SLOTS, UNKNOWN = range(0, 12, 2)


@njit(cache=True, nogil=True)
def prefetch(slots: np.ndarray, key: int) -> None:
    """Prefetch the slot where a key is looked up first."""
    mask = slots.size // 2 - 1
    slot = mix(uint64(key)) & uint64(mask)
    ask(uint64(slots.ctypes.data) + uint64(16) * slot)  # type: ignore[call-arg]  # numba gives the first


@njit(cache=True, nogil=True)
def distinct(
    maps: np.ndarray, servers: int, keys: np.ndarray, slots: np.ndarray,
    found: tuple[np.ndarray, np.ndarray, np.ndarray],
) -> int:  # fmt: skip
    """The distinct keys of one feature, ``keys`` int64 (batch,), in order of first appearance; their slots are
    prefetched. Returns how many. ``found`` is written: each of them, how often it is there, and which of them is at
    each position, all (batch,); ``slots`` int32 (a power of two, >= 2 * batch) is overwritten.
    """
    known, times, places = found
    count, mask = 0, slots.size - 1
    slots[:] = -1
    for b in range(keys.size):
        key = keys[b]
        slot = np.int64((uint64(key) * uint64(GOLDEN)) >> uint64(32)) & mask
        place = slots[slot]
        while place >= 0 and known[place] != key:
            slot = (slot + 1) & mask
            place = slots[slot]
        if place < 0:
            place, known[count], times[count] = count, key, 0
            slots[slot] = count
            count += 1
            server = 4 * owner_of(key, servers)
            if maps[server + 1]:
                prefetch(array_at(maps, server, np.int64), key)
        times[place] += 1
        places[b] = place
    return count


@njit(cache=True, nogil=True)
def ids_of(maps: np.ndarray, servers: int, keys: np.ndarray, ids: np.ndarray, dates: bool) -> None:
    """Write the ids of distinct ``keys`` int64 (n,) of one feature to ``ids`` int32 (n,): NOT_FOUND for those in no map
    that is mapped. ``dates`` marks rows as seen.
    """
    for d in range(keys.size):
        key = keys[d]
        if key == 0:
            ids[d] = 0
            continue
        owner = owner_of(key, servers)
        ids[d] = NOT_FOUND
        if not maps[4 * owner + 1]:
            continue
        row = find(array_at(maps, 4 * owner, np.int64), key)
        if row == NOT_FOUND:
            continue
        if dates:
            seen = array_at(maps, 4 * owner + 2, np.int64)
            if seen[row] != SEEN:  # other trainers may have the line
                seen[row] = SEEN
        ids[d] = row * servers + owner


@njit(cache=True, nogil=True)
def translate(
    maps: np.ndarray, room: np.ndarray, servers: int, plain: tuple[np.ndarray, np.ndarray],
    keyed: tuple[np.ndarray, np.ndarray], ids: np.ndarray, dates: bool,
) -> int:  # fmt: skip
    """Write ``ids`` int32 (batch, features): those of the other features, ``plain`` (values, columns), and of the
    ``keyed`` (keys int64 (batch, keyed features), columns), SHARED_ID for keys that are not found. Returns how many
    distinct keys were not; the room's UNKNOWN has their places, feature * batch + number.

    ``maps`` are the words of ``KernelArgs``: slots and dates of each keyed feature on each PS, empty where they are not
    mapped; ``room`` those of arrays for a batch of this size. ``dates`` marks rows as seen.
    """
    values, columns = plain
    for b in range(ids.shape[0]):
        for j in range(columns.size):
            ids[b, columns[j]] = values[b, j]
    keys, unknown, missed = keyed[0], array_at(room, UNKNOWN, np.int64), 0
    batch, slots = keys.shape[0], array_at(room, SLOTS, np.int32)
    for feature in range(keys.shape[1]):
        line = slice(feature * batch, (feature + 1) * batch)
        known, found = array_at(room, KNOWN, np.int64)[line], array_at(room, FOUND, np.int32)[line]
        into = known, array_at(room, TIMES, np.int32)[line], array_at(room, PLACES, np.int32)[line]
        own = maps[4 * servers * feature : 4 * servers * (feature + 1)]
        count = distinct(own, servers, keys[:, feature], slots, into)
        ids_of(own, servers, known[:count], found, dates)
        for d in range(count):
            if found[d] == NOT_FOUND:
                found[d] = SHARED_ID
                unknown[missed] = line.start + d
                missed += 1
    write_ids(room, keyed[1], ids)
    return missed


@njit(cache=True, nogil=True)
def write_ids(room: np.ndarray, columns: np.ndarray, ids: np.ndarray) -> None:
    """Write the ids of the distinct keys to the ``columns`` of ``ids`` int32 (batch, features)."""
    batch = ids.shape[0]
    places, found = array_at(room, PLACES, np.int32), array_at(room, FOUND, np.int32)
    for feature in range(columns.size):
        column, first = columns[feature], feature * batch
        for b in range(batch):
            ids[b, column] = found[first + places[first + b]]


@njit(cache=True, nogil=True)
def group(room: np.ndarray, batch: int, servers: int, asked: np.ndarray, order: np.ndarray) -> np.ndarray:
    """What to ask for, of the unknown keys of a batch of so many rows, by PS and feature in order of first appearance:
    ``asked`` int64 (unknown, 3) gets key, feature and how often it is there, ``order`` int64 (unknown,) the places.
    Returns where each PS's begin, int64 (servers + 1,).
    """
    known, times = array_at(room, KNOWN, np.int64), array_at(room, TIMES, np.int32)
    unknown, starts = array_at(room, UNKNOWN, np.int64)[: order.size], np.zeros(servers + 1, np.int64)
    for place in unknown:
        starts[owner_of(known[place], servers) + 1] += 1
    for p in range(servers):
        starts[p + 1] += starts[p]
    fill = starts[:-1].copy()
    for place in unknown:
        owner = owner_of(known[place], servers)
        asked[fill[owner], 0], asked[fill[owner], 1], asked[fill[owner], 2] = known[place], place // batch, times[place]
        order[fill[owner]] = place
        fill[owner] += 1
    return starts


@njit(cache=True, nogil=True)
def fill_in(room: np.ndarray, order: np.ndarray, answers: np.ndarray, columns: np.ndarray, ids: np.ndarray) -> None:
    """Write the ``answers`` int32 (n,), the ids of the keys at the places in ``order`` int64 (n,)."""
    found = array_at(room, FOUND, np.int32)
    for i in range(order.size):
        found[order[i]] = answers[i]
    write_ids(room, columns, ids)
