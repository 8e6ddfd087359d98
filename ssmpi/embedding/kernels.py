"""The inner loops of pull and push, compiled and run without the GIL. Rows are float32 (rows, width); those of a table
may be of another type (``precision``).

The order of every sum is fixed, in float32: the vector of a bag is 0 plus weight times row of each id, in the order of
the ids; the gradient of a row is 0 plus weight times gradient for each of its ids, in the order of the batch.

Row numbers are int32 positions in one PS's arena (``table``). Only two functions check them: ``route``, which reads the
ids of the data, and ``out_of_range``, with which a server checks a client's request.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import uint64

from ssmpi.embedding.precision import NEAREST_KEY, narrow, widen
from ssmpi.runtime.compiled.cache_lines import ask_to_read_row
from ssmpi.runtime.compiled.hash_table import mix
from ssmpi.runtime.compiled.jit import njit

EMPTY = np.int64(-1)


@njit(cache=True, nogil=True)
def initial_rows(out: np.ndarray, seed: int, table: int, first: int, stride: int, bound: float) -> None:
    """Fill ``out`` (rows, columns) with U(-bound, bound), a function of (seed, table, id, column) alone.

    Row ``r`` belongs to id ``first + r * stride``, so a part of a table gets the same values as in the whole table.
    """
    golden = uint64(0x9E3779B97F4A7C15)
    key = mix(uint64(seed) * golden + mix(uint64(table) + golden))
    for r in range(out.shape[0]):
        row_key = mix(key ^ mix(uint64(first + r * stride) + golden))
        for j in range(out.shape[1]):
            bits = mix(row_key + uint64(j + 1) * golden) >> uint64(40)  # 24 bits: exact in float32
            value = np.float32((2.0 * (np.float64(bits) + 0.5) / 16777216.0 - 1.0) * bound)
            out[r, j] = narrow(value, out[r, j], NEAREST_KEY, j)


@njit(cache=True, nogil=True)
def out_of_range(rows: np.ndarray, limit: int) -> int:
    """Index of the first row number outside ``[0, limit)``, or -1."""
    for i in range(rows.shape[0]):
        if rows[i] < 0 or rows[i] >= limit:
            return i
    return -1


@njit(cache=True, nogil=True)
def gather(weights: np.ndarray, rows: np.ndarray, out: np.ndarray) -> None:
    """out[k] = weights[rows[k]], rows of a table, which come while others are copied."""
    for k in range(rows.shape[0]):
        ask_to_read_row(weights, rows, k)
        r = rows[k]
        for j in range(weights.shape[1]):
            out[k, j] = widen(weights[r, j])


@njit(cache=True, nogil=True)
def copy(weights: np.ndarray, rows: np.ndarray, out: np.ndarray) -> None:
    """As ``gather``, of the type that ``weights`` has; or one row per id, as the model reads them, of unique ones."""
    for k in range(rows.shape[0]):
        r = rows[k]
        for j in range(weights.shape[1]):
            out[k, j] = weights[r, j]


@njit(cache=True, nogil=True)
def _slot(keys: np.ndarray, key: Any) -> Any:
    """Slot of ``key`` in an open-addressing table, or the free slot where it belongs."""
    mask = keys.shape[0] - 1
    slot = np.int64(mix(uint64(key)) & uint64(mask))
    while keys[slot] != EMPTY and keys[slot] != key:
        slot = (slot + 1) & mask
    return slot


@njit(cache=True, nogil=True)
def _enter(
    keys: np.ndarray, places: np.ndarray, order: np.ndarray, starts: np.ndarray, key: Any, unique: Any
) -> tuple[Any, Any]:
    """The place of a row in ``order`` among so many ``unique`` ones, which it joins if it is new; and how many there
    are then. ``key`` is its PS and row.
    """
    slot = _slot(keys, key)
    if keys[slot] != EMPTY:
        return np.int64(places[slot]), unique
    keys[slot] = key
    places[slot] = unique
    order[unique] = key
    starts[(key >> 32) + 1] += 1
    return unique, unique + 1


@njit(cache=True, nogil=True)
def route(
    ids: np.ndarray,
    bags: np.ndarray,
    tables: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray],
    slots: tuple[np.ndarray, np.ndarray],
    rows: np.ndarray,
    inverse: np.ndarray,
    starts: np.ndarray,
) -> int:
    """Turn ids into the unique rows to request from each PS.

    ids int32: those of bag b are at [bags[b], bags[b + 1]), of feature ``b % features``; without ``bags`` int64, each
    id is a bag. tables: limits, strides int64 (features,), owners int32 and bases int64 (features, most parts);
    slots: keys int64 and places int32, a hash table of a power of two >= 2n slots with every key EMPTY, before and
    after the call. Writes ``rows`` int32 (>= n,): unique rows, those of PS p at [starts[p], starts[p+1]) in order of
    first appearance; ``inverse`` int32 (n,): the index in ``rows`` of each id's row, from the first bag's on;
    ``starts`` int64 (PSs + 1,). Returns the position of the first id outside its table, or -1.
    """
    limits, strides, owners, bases = tables
    keys, places = slots
    features, unique = limits.shape[0], 0
    starts[:] = 0
    order = np.empty(inverse.size, np.int64)
    if bags.size == 0:  # a loop of its own: one of bags costs a pull of single ids 8 %
        for i in range(ids.size):
            f = i % features
            value = np.int64(ids[i])
            if value < 0 or value >= limits[f]:
                keys[:] = EMPTY
                return i
            part = value % strides[f]
            owner = owners[f, part]
            key = (np.int64(owner) << 32) | (bases[f, part] + value // strides[f])
            inverse[i], unique = _enter(keys, places, order, starts, key, unique)
    else:
        first = bags[0]
        for b in range(bags.size - 1):
            f = b % features
            for i in range(bags[b], bags[b + 1]):
                value = np.int64(ids[i])
                if value < 0 or value >= limits[f]:
                    keys[:] = EMPTY
                    return i - first
                part = value % strides[f]
                owner = owners[f, part]
                key = (np.int64(owner) << 32) | (bases[f, part] + value // strides[f])
                inverse[i - first], unique = _enter(keys, places, order, starts, key, unique)
    by_owner(order[:unique], keys, rows, inverse, starts)
    return -1


@njit(cache=True, nogil=True)
def by_owner(order: np.ndarray, keys: np.ndarray, rows: np.ndarray, inverse: np.ndarray, starts: np.ndarray) -> None:
    """Number the unique rows by PS, and empty the hash table: the end of ``route``.

    ``order`` int64 (unique,): their keys, PS and row, in order of first appearance; ``inverse``: places in ``order``,
    which become places in ``rows``; ``starts``: the rows of PS p are counted at p + 1.
    """
    moved = numbered(order, rows, starts)
    for i in range(inverse.shape[0]):
        inverse[i] = moved[inverse[i]]
    if 8 * order.shape[0] > keys.shape[0]:
        keys[:] = EMPTY
    else:
        _clear(keys, order)


@njit(cache=True, nogil=True)
def numbered(order: np.ndarray, rows: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """Number the unique rows by PS: ``order`` int64 (unique,) has PS and row of each, ``rows`` gets the rows, and
    ``starts``, which has how many there are of PS p at p + 1, where each PS's begin. Returns the numbers, int32
    (unique,).
    """
    for p in range(starts.shape[0] - 1):
        starts[p + 1] += starts[p]
    fill = starts[:-1].copy()
    moved = np.empty(order.shape[0], np.int32)
    for d in range(order.shape[0]):
        owner = order[d] >> 32
        rows[fill[owner]] = order[d] & 0xFFFFFFFF
        moved[d] = fill[owner]
        fill[owner] += 1
    return moved


@njit(cache=True, nogil=True)
def _clear(keys: np.ndarray, present: np.ndarray) -> None:
    """Empty the slots of ``present``: find all first, then empty them, so no probe chain breaks in between."""
    slots = np.empty(present.shape[0], np.int64)
    for d in range(present.shape[0]):
        slots[d] = _slot(keys, present[d])
    for d in range(present.shape[0]):
        keys[slots[d]] = EMPTY


@njit(cache=True, nogil=True)
def pool(rows: np.ndarray, places: np.ndarray, bags: np.ndarray, weights: np.ndarray, out: np.ndarray) -> None:
    """out[b] = sum of weights[i] * rows[places[i]] over bags[b] <= i < bags[b + 1]; places and weights (empty if all
    are 1) begin with the first bag's.
    """
    first = bags[0]
    for b in range(out.shape[0]):
        for j in range(out.shape[1]):
            out[b, j] = 0.0
        for i in range(bags[b] - first, bags[b + 1] - first):
            row = places[i]
            if weights.size:
                weight = weights[i]
                for j in range(out.shape[1]):
                    out[b, j] += weight * widen(rows[row, j])
            else:
                for j in range(out.shape[1]):
                    out[b, j] += widen(rows[row, j])


@njit(cache=True, nogil=True)
def sum_by_row(
    gradients: np.ndarray, places: np.ndarray, bags: np.ndarray, weights: np.ndarray, out: np.ndarray
) -> None:
    """out[k] = sum of weights[i] * gradients[b] over the ids i of all bags b with places[i] == k, in order of i: an id
    that occurs twice is one update. ``bags`` and ``weights`` as in ``pool``; without bags each id has a gradient.

    gradients (bags, width) or (batch, features, width): reshaping here, in compiled code, does not hold the GIL.
    """
    out[:] = 0.0
    if bags.size == 0:
        flat = gradients.reshape(places.shape[0], out.shape[1])
        for i in range(places.shape[0]):
            k = places[i]
            for j in range(out.shape[1]):
                out[k, j] += flat[i, j]
        return
    by_bag, first = gradients.reshape(bags.size - 1, out.shape[1]), bags[0]
    for b in range(bags.size - 1):
        for i in range(bags[b] - first, bags[b + 1] - first):
            row = places[i]
            if weights.size:
                weight = weights[i]
                for j in range(out.shape[1]):
                    out[row, j] += weight * by_bag[b, j]
            else:
                for j in range(out.shape[1]):
                    out[row, j] += by_bag[b, j]


@njit(cache=True, nogil=True)
def occurrences(inverse: np.ndarray, out: np.ndarray) -> None:
    """out[d] = how often d is in ``inverse``; both int32."""
    out[:] = 0
    for i in range(inverse.shape[0]):
        out[inverse[i]] += 1
