"""From the keys of a batch to its distinct ids, compiled and run without the GIL.

Arrays by distinct value are (features, batch): those of a feature begin its line. A feature's values are taken
together, so that the table that finds the distinct ones fits in the first cache. Only these are looked up in a map, all
of a feature at once: their slots are prefetched, then their dates. Distinct ids need no table to find distinct rows.
"""

from __future__ import annotations

import numpy as np
from numba import uint64

from ssmpi.compiled.cache_lines import ask, ask_to_write
from ssmpi.compiled.jit import njit
from ssmpi.compiled.kernel_args import array_at
from ssmpi.embedding.kernels import mix, numbered
from ssmpi.embedding.key_kernels import NOT_FOUND, SEEN, SHARED_ID, find, owner_of, slots_of

AWAITED = -2  # in place of the id of a key whose PS is asked together with its row

# Places in the room of a batch: distinct values, their ids, how many of them each feature has; which one is at each
# position; the table that finds them; which keys are unknown
KNOWN, FOUND, COUNTS, PLACES, SLOTS, UNKNOWN = range(0, 12, 2)


@njit(cache=True, nogil=True)
def distinct(values: np.ndarray, slots: np.ndarray, known: np.ndarray, places: np.ndarray) -> int:
    """How many distinct ``values`` int (batch,) there are. ``known`` int64 (> batch,) gets them in order of first
    appearance, ``places`` int32 (batch,) which one is at each position; ``slots`` int32 (a power of two, >= 2 * batch)
    is overwritten. Whether a value is new is no branch: it cannot be predicted.
    """
    count, mask = np.int64(0), slots.size - 1
    slots[:] = -1
    for b in range(values.size):
        value = np.int64(values[b])
        slot = np.int64(mix(uint64(value)) >> uint64(40)) & mask
        place = np.int64(slots[slot])
        while place >= 0 and known[place] != value:
            slot = (slot + 1) & mask
            place = np.int64(slots[slot])
        new = np.int64(place < 0)
        place += new * (count - place)
        known[count] = value  # overwritten, if it is not new
        slots[slot] = place
        places[b] = place
        count += new
    return count  # type: ignore[return-value]  # as numba has it


@njit(cache=True, nogil=True)
def ids_of(maps: np.ndarray, servers: int, keys: np.ndarray, ids: np.ndarray, dates: bool) -> None:
    """Write the ids of distinct ``keys`` int64 (n,) of one feature to ``ids`` int32 (n,): NOT_FOUND for those in no map
    that is mapped. ``dates`` marks rows as seen.
    """
    for key in keys:
        place = 4 * owner_of(key, servers)
        if maps[place + 1]:
            slots = array_at(maps, place, np.int64)
            slot = mix(uint64(key)) & uint64(slots.size // 2 - 1)
            ask(uint64(slots.ctypes.data) + uint64(16) * slot)  # type: ignore[call-arg]  # numba gives the first
    for d in range(keys.size):
        owner, row = owner_of(keys[d], servers), np.int64(NOT_FOUND)
        if maps[4 * owner + 1] and keys[d] != 0:
            row = find(array_at(maps, 4 * owner, np.int64), keys[d])
        ids[d] = NOT_FOUND
        if row != NOT_FOUND:
            ids[d] = row * servers + owner
            ask_to_write(uint64(maps[4 * owner + 2] + 8 * row))  # type: ignore[call-arg]
    for d in range(keys.size):
        if keys[d] == 0:
            ids[d] = 0
        elif dates and ids[d] != NOT_FOUND:
            seen = array_at(maps, 4 * (ids[d] % servers) + 2, np.int64)
            if seen[ids[d] // servers] != SEEN:  # other trainers may have the line
                seen[ids[d] // servers] = SEEN


@njit(cache=True, nogil=True)
def as_they_are(maps: np.ndarray, now: np.ndarray) -> None:
    """Write the words of slots and dates of one feature's tables to ``now``, from those of head with maps and dates."""
    now[:] = maps
    for place in range(0, maps.size, 4):
        if maps[place + 1]:
            slots = slots_of(array_at(maps, place, np.int64))
            now[place], now[place + 1] = slots.ctypes.data, slots.size


@njit(cache=True, nogil=True)
def translate(
    maps: np.ndarray, room: np.ndarray, servers: int, sources: np.ndarray, batch: tuple[np.ndarray, np.ndarray],
    dates: bool,
) -> int:  # fmt: skip
    """Find the distinct values of each feature of a ``batch``, ids int32 (batch, plain features) and keys int64 (batch,
    keyed features), and the ids of the keys: SHARED_ID for those that are not found. Returns how many were not; the
    room's UNKNOWN has their places, feature * batch + number.

    ``sources`` int64 (features,): column of the keys, or -1 minus that of the ids. ``maps`` are the words of
    ``KernelArgs``: head with maps and dates of each keyed feature on each PS, empty where they are not mapped; ``room``
    those of arrays for a batch of this size. ``dates`` marks rows as seen.
    """
    (values, keys), now = batch, np.empty(4 * servers, np.int64)
    slots, unknown, missed = array_at(room, SLOTS, np.int32), array_at(room, UNKNOWN, np.int64), 0
    all_known, all_found = array_at(room, KNOWN, np.int64), array_at(room, FOUND, np.int32)
    counts, rows = array_at(room, COUNTS, np.int64), keys.shape[0]
    for feature in range(sources.size):
        source, line = sources[feature], slice(feature * rows, (feature + 1) * rows)
        known, found = all_known[line.start :], all_found[line]
        places = array_at(room, PLACES, np.int32)[line]
        if source < 0:
            count = distinct(values[:, -1 - source], slots, known, places)
            for d in range(count):
                found[d] = known[d]
        else:
            count = distinct(keys[:, source], slots, known, places)
            as_they_are(maps[4 * servers * source : 4 * servers * (source + 1)], now)
            ids_of(now, servers, known[:count], found, dates)
            for d in range(count):
                if found[d] == NOT_FOUND:
                    found[d] = SHARED_ID
                    unknown[missed] = line.start + d
                    missed += 1
        counts[feature] = count
    return missed


@njit(cache=True, nogil=True)
def group(
    room: np.ndarray, counted: tuple[int, int], servers: int, sources: np.ndarray, asked: np.ndarray, order: np.ndarray
) -> np.ndarray:
    """What to ask for, of the unknown keys of a batch, by PS and feature in order of first appearance: ``asked`` int64
    (unknown, 3) gets key, number of the keyed feature, and how often it is in the rows that are ``counted``, from one
    on to the batch's end; ``order`` int64 (unknown,) the places. Returns where each PS's begin, int64 (servers + 1,).
    """
    again, batch = counted
    known, places = array_at(room, KNOWN, np.int64), array_at(room, PLACES, np.int32)
    unknown, starts = array_at(room, UNKNOWN, np.int64)[: order.size], np.zeros(servers + 1, np.int64)
    times = np.zeros(batch * sources.size, np.int64)
    for feature in range(sources.size):
        for b in range(feature * batch + again, (feature + 1) * batch):
            times[feature * batch + places[b]] += 1
    for place in unknown:
        starts[owner_of(known[place], servers) + 1] += 1
    for p in range(servers):
        starts[p + 1] += starts[p]
    fill = starts[:-1].copy()
    for place in unknown:
        owner = owner_of(known[place], servers)
        at = fill[owner]
        asked[at, 0], asked[at, 1], asked[at, 2] = known[place], sources[place // batch], times[place]
        order[at] = place
        fill[owner] += 1
    return starts


@njit(cache=True, nogil=True)
def fill_in(room: np.ndarray, order: np.ndarray, answers: np.ndarray) -> None:
    """Write the ``answers`` int32 (n,), the ids of the keys at the places in ``order`` int64 (n,)."""
    found = array_at(room, FOUND, np.int32)
    for i in range(order.size):
        found[order[i]] = answers[i]


@njit(cache=True, nogil=True)
def route_distinct(
    room: np.ndarray, tables: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray],
    awaited: tuple[np.ndarray, np.ndarray], out: tuple[np.ndarray, np.ndarray, np.ndarray],
) -> int:  # fmt: skip
    """As ``kernels.route``, of distinct ids, feature by feature: distinct ids of a feature are distinct rows, but for
    the row that keys share. ``tables`` are limits, strides, owners, bases, and ``out`` rows, inverse and starts.

    ``awaited`` are the places of keys whose ids are AWAITED, int64 (n,), ordered by PS. Each stands for a row of its
    PS, behind the known ones, and the rows that their features share are looked up too; then ``substitutes``, int32 (>=
    unique rows,), gets the number of each row itself, of an awaited one that of the shared row, which serves if the key
    has none, and NOT_FOUND of a shared row that nobody needs so far.
    """
    (limits, strides, owners, bases), (rows, inverse, starts) = tables, out
    found, counts = array_at(room, FOUND, np.int32), array_at(room, COUNTS, np.int64)
    places, unique, batch = array_at(room, PLACES, np.int32), 0, inverse.size // limits.size
    order, number = np.empty(counts.sum() + limits.size, np.int64), np.empty(inverse.size, np.int32)
    shared = np.full(limits.size, -1)
    starts[:] = 0
    for f in range(limits.size):
        stride = strides[f]
        for d in range(f * batch, f * batch + counts[f]):
            value = np.int64(found[d])
            if value == AWAITED:
                continue
            if value < 0 or value >= limits[f]:
                first = np.argmax(places[f * batch : (f + 1) * batch] == d - f * batch)
                return first * limits.size + f  # type: ignore[return-value]  # as numba has it
            if value == SHARED_ID and shared[f] >= 0:
                number[d] = shared[f]
                continue
            owner = owners[f, value % stride]
            order[unique] = (np.int64(owner) << 32) | (bases[f, value % stride] + value // stride)
            number[d] = unique
            if value == SHARED_ID:
                shared[f] = unique
            starts[owner + 1] += 1
            unique += 1
    known = unique
    if awaited[0].size:
        unique = _enter_awaited(room, tables, awaited[0], (order, number, shared, starts), known)
    moved = numbered(order[:unique], rows, starts)
    if awaited[0].size:
        _name_substitutes(awaited, batch, (moved, number, shared), known)
    for f in range(limits.size):
        for d in range(f * batch, f * batch + counts[f]):
            number[d] = moved[number[d]]
        for b in range(batch):
            inverse[b * limits.size + f] = number[f * batch + places[f * batch + b]]
    return -1


@njit(cache=True, nogil=True)
def _enter_awaited(
    room: np.ndarray, tables: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray], awaited: np.ndarray,
    entered: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray], unique: int,
) -> int:  # fmt: skip
    """Enter the shared rows that ``awaited`` keys may need, then those keys, for ``route_distinct``, which has
    ``entered`` so many ``unique`` rows; how many there are then.
    """
    (_, strides, owners, bases), (order, number, shared, starts) = tables, entered
    keys, batch = array_at(room, KNOWN, np.int64), number.size // shared.size
    for place in awaited:
        f = place // batch
        if shared[f] < 0:
            part, shared[f] = SHARED_ID % strides[f], unique
            order[unique] = (np.int64(owners[f, part]) << 32) | (bases[f, part] + SHARED_ID // strides[f])
            starts[owners[f, part] + 1] += 1
            unique += 1
    for place in awaited:
        owner = owner_of(keys[place], starts.size - 1)
        order[unique] = owner << 32
        number[place] = unique
        starts[owner + 1] += 1
        unique += 1
    return unique


@njit(cache=True, nogil=True)
def _name_substitutes(
    awaited: tuple[np.ndarray, np.ndarray], batch: int, numbers: tuple[np.ndarray, np.ndarray, np.ndarray], known: int
) -> None:
    """The substitutes of ``route_distinct``, from its numbers and how many rows are needed in any case."""
    (places, substitutes), (moved, number, shared) = awaited, numbers
    for e in range(moved.size):
        substitutes[e] = e
    for f in range(shared.size):
        if shared[f] >= known:
            substitutes[moved[shared[f]]] = NOT_FOUND
    for place in places:
        substitutes[moved[number[place]]] = moved[shared[place // batch]]
