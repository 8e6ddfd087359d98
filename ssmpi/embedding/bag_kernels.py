"""Pull and push of bags: the rows of a bag are pooled to one vector, and each gets its share of that vector's gradient.

The order of every sum is fixed, in float32: a vector is 0 plus weight times row of each id, in the order of the ids;
the gradient of a row is 0 plus weight times gradient for each of its ids, in the order of the batch.
"""

from __future__ import annotations

import numpy as np

from ssmpi.embedding.kernels import gather, route_bags
from ssmpi.embedding.lookup_kernels import (
    BASES,
    INVERSE,
    KEYS,
    LIMITS,
    MAPPED,
    OWNERS,
    PLACES,
    ROWS,
    STARTS,
    STRIDES,
    SUMMED,
    UNIQUE,
    VALUES,
    by_row,
    update_rows,
)
from ssmpi.runtime.compiled.jit import njit
from ssmpi.runtime.compiled.kernel_args import array_at


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
                    out[b, j] += weight * rows[row, j]
            else:
                for j in range(out.shape[1]):
                    out[b, j] += rows[row, j]


@njit(cache=True, nogil=True)
def sum_by_row(
    gradients: np.ndarray, places: np.ndarray, bags: np.ndarray, weights: np.ndarray, out: np.ndarray
) -> None:
    """out[k] = sum of weights[i] * gradients[b] over the ids i of all bags b with places[i] == k, in order."""
    first = bags[0]
    out[:] = 0.0
    for b in range(bags.shape[0] - 1):
        for i in range(bags[b] - first, bags[b + 1] - first):
            row = places[i]
            if weights.size:
                weight = weights[i]
                for j in range(out.shape[1]):
                    out[row, j] += weight * gradients[b, j]
            else:
                for j in range(out.shape[1]):
                    out[row, j] += gradients[b, j]


@njit(cache=True, nogil=True)
def pull(args: np.ndarray, ids: np.ndarray, bags: np.ndarray) -> int:
    """Find the unique rows of the ids of bags, and copy the accessible ones to UNIQUE. Returns their number, or -1
    minus the place of the first id outside its table.
    """
    limits, starts = array_at(args, LIMITS, np.int64), array_at(args, STARTS, np.int64)
    owners, bases = array_at(args, OWNERS, np.int32), array_at(args, BASES, np.int64)
    features, most = limits.size, owners.size // limits.size
    tables = limits, array_at(args, STRIDES, np.int64), owners.reshape(features, most), bases.reshape(features, most)
    rows, count = array_at(args, ROWS, np.int32), bags[-1] - bags[0]
    bad = route_bags(
        ids, bags, tables, (array_at(args, KEYS, np.int64), array_at(args, PLACES, np.int32)), rows,
        array_at(args, INVERSE, np.int32)[:count], starts,
    )  # fmt: skip
    if bad >= 0:
        return -1 - bad
    unique = by_row(args, UNIQUE)
    for server in range(starts.size - 1):
        weights = array_at(args, MAPPED + 4 * server, np.float32)
        if weights.size:
            part, width = slice(starts[server], starts[server + 1]), unique.shape[1]
            gather(weights.reshape(weights.size // width, width), rows[part], unique[part])
    return starts[-1]


@njit(cache=True, nogil=True)
def expand_bags(args: np.ndarray, bags: np.ndarray, weights: np.ndarray) -> None:
    """Pool the unique rows, which have arrived, to VALUES."""
    unique, count = by_row(args, UNIQUE), bags.size - 1
    values = array_at(args, VALUES, np.float32)[: count * unique.shape[1]].reshape(count, unique.shape[1])
    pool(unique, array_at(args, INVERSE, np.int32), bags, weights, values)


@njit(cache=True, nogil=True)
def sum_gradients(args: np.ndarray, gradients: np.ndarray, bags: np.ndarray, weights: np.ndarray) -> None:
    """Sum gradients float32 (batch, features, width) with respect to VALUES by row, into SUMMED."""
    summed, width = array_at(args, SUMMED, np.float32), gradients.shape[2]
    unique, count = array_at(args, STARTS, np.int64)[-1], bags.size - 1
    rows = summed[: unique * width].reshape(unique, width)
    sum_by_row(gradients.reshape(count, width), array_at(args, INVERSE, np.int32), bags, weights, rows)


@njit(cache=True, nogil=True)
def push(
    args: np.ndarray, gradients: np.ndarray, bags: np.ndarray, weights: np.ndarray, optimizer: np.ndarray, factor: float
) -> None:
    """Sum the gradients, then update all accessible rows by the numbers of an ``optimizer``."""
    sum_gradients(args, gradients, bags, weights)
    update_rows(args, optimizer, factor)
