"""From the keys of a batch to its distinct ids, compiled and run without the GIL.

Arrays by distinct value are (features, batch): those of a feature begin its line. A feature's values are taken
together, so that the table that finds the distinct ones fits in the first cache. Only these are looked up in a map, all
of a feature at once: their slots are prefetched, then their dates. Distinct ids need no table to find distinct rows.
"""

from __future__ import annotations

import numpy as np
from numba import uint64

from ssmpi.embedding.kernels import numbered
from ssmpi.embedding.key_kernels import SHARED_ID, owner_of, see, slots_of
from ssmpi.runtime.compiled.cache_lines import ask_to_write
from ssmpi.runtime.compiled.hash_table import NOT_FOUND, ask_for_slot, find, mix
from ssmpi.runtime.compiled.jit import njit
from ssmpi.runtime.compiled.kernel_args import array_at

AWAITED = -2  # in place of the id of a key whose PS is asked together with its row

# Places in the room of a batch: distinct values, their ids, how many of them each feature has; which one is at each
# position; the table that finds them; places of unknown keys, then those in the order in which they are asked for, what
# is asked for, and where that of each PS begins; the row of each distinct value among the unique ones of a lookup, and
# the row that keys of a feature share, or -1
KNOWN, FOUND, COUNTS, PLACES, SLOTS, UNKNOWN, ORDER, ASKED, STARTS, ROWS, SHARED = range(0, 22, 2)


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
    """Write the ids of distinct ``keys`` int64 (n,) of one feature to ``ids`` int32 (n,): NOT_FOUND for those that are
    not in their map, AWAITED where that is not mapped. ``dates`` marks rows as seen.
    """
    if not maps[1::4].any():
        ids[: keys.size] = AWAITED * (keys != 0)
        return
    for key in keys:
        place = 4 * owner_of(key, servers)
        if maps[place + 1]:
            ask_for_slot(array_at(maps, place, np.int64), key)
    for d in range(keys.size):
        owner = owner_of(keys[d], servers)
        ids[d] = AWAITED
        if keys[d] == 0:
            ids[d] = 0
        elif maps[4 * owner + 1]:
            row = find(array_at(maps, 4 * owner, np.int64), keys[d])
            ids[d] = NOT_FOUND
            if row != NOT_FOUND:
                ids[d] = row * servers + owner
                ask_to_write(uint64(maps[4 * owner + 2] + 8 * row))  # type: ignore[call-arg]
    for d in range(keys.size):
        if dates and ids[d] > 0:
            see(array_at(maps, 4 * (ids[d] % servers) + 2, np.int64), ids[d] // servers)


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
    maps: np.ndarray, room: np.ndarray, servers: int, sources: np.ndarray, values: np.ndarray,
    keys: np.ndarray, again: int,
) -> int:  # fmt: skip
    """Find the distinct values of each feature of a batch, ids ``values`` int32 (batch, plain features) and ``keys``
    int64 (batch, keyed features), and the ids of the keys: SHARED_ID for those that are not found, AWAITED for those
    that are not mapped. Returns how many these are; the room's ORDER has their places, feature * batch + number, and
    ASKED what to ask for.

    ``sources`` int64 (features,): column of the keys, or -1 minus that of the ids. ``maps`` are the words of
    ``KernelArgs``: head with maps and dates of each keyed feature on each PS, empty where they are not mapped; ``room``
    those of arrays for a batch of this size. So many of its first rows are looked up ``again``, and keys are not
    counted in these; if they are all, rows are not dated either.
    """
    now = np.empty(4 * servers, np.int64)
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
            ids_of(now, servers, known[:count], found, again < rows)
            for d in range(count):
                if found[d] < 0:
                    found[d] = SHARED_ID if found[d] == NOT_FOUND else AWAITED
                    unknown[missed] = line.start + d
                    missed += 1
        counts[feature] = count
    if missed:
        _group(room, again, rows, servers, sources, unknown[:missed])
    return missed


@njit(cache=True, nogil=True)
def _group(room: np.ndarray, again: int, batch: int, servers: int, sources: np.ndarray, unknown: np.ndarray) -> None:
    """What to ask for, of the ``unknown`` keys of a batch, by PS and feature in order of first appearance: ASKED, int64
    (unknown, 3), gets key, number of the keyed feature, and how often it is in the rows of the ``batch`` behind those
    that are looked up ``again``; ORDER the places.
    """
    known, places = array_at(room, KNOWN, np.int64), array_at(room, PLACES, np.int32)
    order, starts = array_at(room, ORDER, np.int64), array_at(room, STARTS, np.int64)
    asked = array_at(room, ASKED, np.int64).reshape(order.size, 3)
    times, owners = np.zeros(batch * sources.size, np.int32), np.empty(unknown.size, np.int32)
    starts[:] = 0
    for feature in range(sources.size):
        for b in range(feature * batch + again, (feature + 1) * batch):
            times[feature * batch + places[b]] += 1
    for u in range(unknown.size):
        owners[u] = owner_of(known[unknown[u]], servers)
        starts[owners[u] + 1] += 1
    for p in range(servers):
        starts[p + 1] += starts[p]
    fill, u = starts[:-1].copy(), 0
    for feature in range(sources.size):
        while u < unknown.size and unknown[u] < (feature + 1) * batch:
            at, place = fill[owners[u]], unknown[u]
            asked[at, 0], asked[at, 1], asked[at, 2] = known[place], sources[feature], times[place]
            order[at] = place
            fill[owners[u]] += 1
            u += 1


@njit(cache=True, nogil=True)
def fill_in(room: np.ndarray, order: np.ndarray, answers: np.ndarray) -> None:
    """Write the ``answers`` int32 (n,), the ids of the keys at the places in ``order`` int64 (n,)."""
    found = array_at(room, FOUND, np.int32)
    for i in range(order.size):
        found[order[i]] = answers[i]


@njit(cache=True, nogil=True)
def route_distinct(
    room: np.ndarray, tables: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray],
    asked: np.ndarray, begin: np.ndarray, width: int, rows: np.ndarray, inverse: np.ndarray, starts: np.ndarray,
) -> int:  # fmt: skip
    """As ``kernels.route``, of distinct ids, feature by feature: distinct ids of a feature are distinct rows, but for
    the row that keys share. ``tables`` are limits, strides, owners, bases; ``rows``, ``inverse`` and ``starts`` are
    written.

    ``asked`` are the places of keys whose ids are AWAITED, int64 (n,), ordered by PS, and ``begin`` where each PS's
    begin, int64 (servers + 1,). Behind its known rows there is one for each of them, and room for their ids, as
    ``spare_rows`` says; the rows that their features share are among the known ones.
    """
    limits, strides, owners, bases = tables
    found, counts = array_at(room, FOUND, np.int32), array_at(room, COUNTS, np.int64)
    places, unique, batch = array_at(room, PLACES, np.int32), 0, inverse.size // limits.size
    order, number = np.empty(counts.sum() + limits.size, np.int64), array_at(room, ROWS, np.int32)
    shared = array_at(room, SHARED, np.int64)
    shared[:] = -1
    starts[:] = 0
    for place in asked:
        shared[place // batch] = AWAITED
    for f in range(limits.size):
        stride = strides[f]
        if shared[f] == AWAITED:
            owner, shared[f] = owners[f, SHARED_ID % stride], unique
            order[unique] = (np.int64(owner) << 32) | (bases[f, SHARED_ID % stride] + SHARED_ID // stride)
            starts[owner + 1] += 1
            unique += 1
        for d in range(f * batch, f * batch + counts[f]):
            value = np.int64(found[d])
            if value == AWAITED:
                number[d] = 0  # for now
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
    for p in range(starts.size - 1 if asked.size else 0):
        starts[p + 1] += spare_rows(begin[p + 1] - begin[p], width)
    moved = numbered(order[:unique], rows, starts)
    for f in range(limits.size):
        if shared[f] >= 0:
            shared[f] = moved[shared[f]]
        for d in range(f * batch, f * batch + counts[f]):
            number[d] = moved[number[d]]
    for p in range(starts.size - 1 if asked.size else 0):
        first = starts[p + 1] - spare_rows(begin[p + 1] - begin[p], width) - begin[p]
        for k in range(begin[p], begin[p + 1]):
            number[asked[k]] = first + k
    _spread(room, inverse, limits.size)
    return -1


@njit(cache=True, nogil=True)
def spare_rows(keys: int, width: int) -> int:
    """How many rows of ``width`` floats a PS answers with for so many ``keys``: theirs, and then their ids, int32."""
    return keys + (keys + width - 1) // width


@njit(cache=True, nogil=True)
def _spread(room: np.ndarray, inverse: np.ndarray, features: int) -> None:
    """Write the row of each id to ``inverse`` from those of distinct ids."""
    places, number = array_at(room, PLACES, np.int32), array_at(room, ROWS, np.int32)
    batch = inverse.size // features
    for f in range(features):
        for b in range(batch):
            inverse[b * features + f] = number[f * batch + places[f * batch + b]]


@njit(cache=True, nogil=True)
def take_ids(
    room: np.ndarray, asked: np.ndarray, begin: np.ndarray, unique: np.ndarray, starts: np.ndarray, inverse: np.ndarray,
) -> None:  # fmt: skip
    """The ids of awaited keys have arrived behind their rows in ``unique`` (see ``route_distinct``): fill them in,
    and have those without a row read the one that they share.
    """
    found, number = array_at(room, FOUND, np.int32), array_at(room, ROWS, np.int32)
    shared = array_at(room, SHARED, np.int64)
    batch, width = inverse.size // shared.size, unique.shape[1]
    for p in range(starts.size - 1):
        keys = begin[p + 1] - begin[p]
        first = starts[p + 1] - spare_rows(keys, width) + keys
        ids = unique[first : starts[p + 1]].reshape((starts[p + 1] - first) * width).view(np.int32)
        for k in range(keys):
            place = asked[begin[p] + k]
            found[place] = ids[k]
            if ids[k] == SHARED_ID:
                number[place] = shared[place // batch]
    _spread(room, inverse, shared.size)
