"""Pull and push of one batch, one compiled call each, over preallocated arrays (``KernelArgs``). The call that finds
the unique rows also fetches those that this process can access; the call that sums their gradients also updates them.
Fewer calls mean less time with the GIL: between two calls a thread holds it for 15 to 40 us if the model's step has
evicted the caches. ``like`` is a number of the type of the tables' rows (``precision``).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ssmpi.embedding.kernels import copy, gather, pool, route, sum_by_row
from ssmpi.embedding.key_lookup_kernels import route_distinct, take_ids
from ssmpi.embedding.row_optimizers import update
from ssmpi.runtime.compiled.jit import njit
from ssmpi.runtime.compiled.kernel_args import array_at

# Places in a lookup's arguments. From MAPPED on: weights and state of each PS, empty if they are not mapped here.
LIMITS, STRIDES, OWNERS, BASES, KEYS, PLACES, ROWS, INVERSE, STARTS, UNIQUE, VALUES, SUMMED, MAPPED = range(0, 26, 2)


@njit(cache=True, nogil=True)
def pull(args: np.ndarray, ids: np.ndarray, bags: np.ndarray, weights: np.ndarray, whole: bool, like: Any) -> int:
    """Find the unique rows of a batch and copy the accessible ones to UNIQUE; if ``whole``, all are accessible and
    VALUES are filled too. Ids are int32 (batch, features), or those of ``bags`` as in ``kernels.pool``. Returns the
    number of unique rows, or -1 minus the position of the first id outside its table.
    """
    starts, flat, count = array_at(args, STARTS, np.int64), ids.reshape(ids.size), ids.size
    if bags.size:
        count = bags[-1] - bags[0]
    slots = array_at(args, KEYS, np.int64), array_at(args, PLACES, np.int32)
    rows, inverse = array_at(args, ROWS, np.int32), array_at(args, INVERSE, np.int32)[:count]
    bad = route(flat, bags, _tables(args), slots, rows, inverse, starts)
    if bad >= 0:
        return -1 - bad
    _fetch(args, like)
    if whole:
        expand(args, count, bags, weights)
    return starts[-1]


@njit(cache=True, nogil=True)
def _tables(args: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Limits, strides, owners and bases, as ``route`` has them."""
    limits, owners = array_at(args, LIMITS, np.int64), array_at(args, OWNERS, np.int32)
    shape = limits.size, owners.size // limits.size
    bases = array_at(args, BASES, np.int64)
    return limits, array_at(args, STRIDES, np.int64), owners.reshape(shape), bases.reshape(shape)


@njit(cache=True, nogil=True)
def pull_distinct(
    args: np.ndarray, room: np.ndarray, batch: int, asked: np.ndarray, begin: np.ndarray, whole: bool, like: Any
) -> int:
    """As ``pull``, of the distinct ids of a ``batch`` of so many rows (the room of ``key_lookup_kernels``), some of
    which are awaited, see ``route_distinct``.
    """
    tables, starts = _tables(args), array_at(args, STARTS, np.int64)
    count, width = tables[0].size * batch, by_row(args, UNIQUE).shape[1]
    rows, inverse = array_at(args, ROWS, np.int32), array_at(args, INVERSE, np.int32)[:count]
    bad = route_distinct(room, tables, asked, begin, width, rows, inverse, starts)
    if bad >= 0:
        return -1 - bad
    _fetch(args, like)
    if whole:
        _expand_rows(args, count)
    return starts[-1]


@njit(cache=True, nogil=True)
def expand_distinct(args: np.ndarray, room: np.ndarray, count: int, asked: np.ndarray, begin: np.ndarray) -> int:
    """When all rows have arrived, and with them the ids of awaited keys: fill VALUES for ``count`` ids, and find
    the unique rows as if all ids had been known. Returns how many there are.
    """
    tables, starts, unique = _tables(args), array_at(args, STARTS, np.int64), by_row(args, UNIQUE)
    rows, inverse = array_at(args, ROWS, np.int32), array_at(args, INVERSE, np.int32)[:count]
    take_ids(room, asked, begin, unique, starts, inverse)
    _expand_rows(args, count)
    route_distinct(room, tables, asked[:0], begin, unique.shape[1], rows, inverse, starts)
    return starts[-1]


@njit(cache=True, nogil=True)
def _fetch(args: np.ndarray, like: Any) -> None:
    """Copy the accessible ones of the unique rows."""
    unique, starts, rows = by_row(args, UNIQUE), array_at(args, STARTS, np.int64), array_at(args, ROWS, np.int32)
    for server in range(starts.size - 1):
        weights = array_at(args, MAPPED + 4 * server, like)
        if weights.size:
            part, width = slice(starts[server], starts[server + 1]), unique.shape[1]
            gather(weights.reshape(weights.size // width, width), rows[part], unique[part])


@njit(cache=True, nogil=True)
def expand(args: np.ndarray, count: int, bags: np.ndarray, weights: np.ndarray) -> None:
    """Fill VALUES from the unique rows, which have arrived: one for each of ``count`` ids, or pooled by bag."""
    if bags.size == 0:
        _expand_rows(args, count)
        return
    unique = by_row(args, UNIQUE)
    values = array_at(args, VALUES, np.float32)[: (bags.size - 1) * unique.shape[1]]
    pool(unique, array_at(args, INVERSE, np.int32), bags, weights, values.reshape(bags.size - 1, unique.shape[1]))


@njit(cache=True, nogil=True)
def _expand_rows(args: np.ndarray, count: int) -> None:
    """As ``expand``, without bags."""
    unique, values = by_row(args, UNIQUE), array_at(args, VALUES, np.float32)
    by_id = values.reshape(values.size // unique.shape[1], unique.shape[1])
    copy(unique, array_at(args, INVERSE, np.int32)[:count], by_id[:count])


@njit(cache=True, nogil=True)
def sum_gradients(args: np.ndarray, gradients: np.ndarray, bags: np.ndarray, weights: np.ndarray) -> None:
    """Sum gradients float32 (batch, features, width) with respect to VALUES by row, into SUMMED."""
    summed, width = array_at(args, SUMMED, np.float32), gradients.shape[2]
    unique, count = array_at(args, STARTS, np.int64)[-1], gradients.size // width
    if bags.size:
        count = bags[-1] - bags[0]
    rows = summed[: unique * width].reshape(unique, width)
    sum_by_row(gradients, array_at(args, INVERSE, np.int32)[:count], bags, weights, rows)


@njit(cache=True, nogil=True)
def push(
    args: np.ndarray, gradients: np.ndarray, bags: np.ndarray, weights: np.ndarray, optimizer: np.ndarray,
    factor: float, like: Any, push_number: int,
) -> None:  # fmt: skip
    """Sum the gradients, then update all accessible rows by the numbers of an ``optimizer`` and that of the push."""
    sum_gradients(args, gradients, bags, weights)
    _update_rows(args, optimizer, factor, like, push_number)


@njit(cache=True, nogil=True)
def _update_rows(args: np.ndarray, optimizer: np.ndarray, factor: float, like: Any, push_number: int) -> None:
    """Update all accessible rows by SUMMED."""
    starts, rows, summed = array_at(args, STARTS, np.int64), array_at(args, ROWS, np.int32), by_row(args, SUMMED)
    for server in range(starts.size - 1):
        weights = array_at(args, MAPPED + 4 * server, like)
        state = array_at(args, MAPPED + 4 * server + 2, np.float32)
        if weights.size:
            part, width = slice(starts[server], starts[server + 1]), summed.shape[1]
            count = weights.size // width
            table, states = weights.reshape(count, width), state.reshape(count, state.size // count)
            update(optimizer, table, states, rows[part], summed[part], factor, push_number)


@njit(cache=True, nogil=True)
def by_row(args: np.ndarray, place: int) -> np.ndarray:
    """UNIQUE or SUMMED as (rows, width)."""
    values, most = array_at(args, place, np.float32), args[ROWS + 1]
    return values.reshape(most, values.size // most)
