"""For one batch, the partial sums of bags that each embedding PS pools, and the single rows that it sends."""

from __future__ import annotations

import numpy as np

from ssmpi.runtime.compiled.jit import njit


@njit(cache=True, nogil=True)
def owners_of(starts: np.ndarray) -> np.ndarray:
    """The PS of each unique row, int32 (unique,); ``starts`` int64 (PSs + 1,)."""
    found = np.empty(starts[-1], np.int32)
    for p in range(starts.size - 1):
        found[starts[p] : starts[p + 1]] = p
    return found


@njit(cache=True, nogil=True)
def places_of(
    bags: np.ndarray, inverse: np.ndarray, owners: np.ndarray, starts: np.ndarray, pooled: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """For each unique row, its place among those of its PS that are sent one by one, or that are pooled there; int32
    (unique,), and bool (unique,) whether it is pooled. pooled: bool (PSs, features).
    """
    features, first = pooled.shape[1], bags[0]
    by_bag = np.zeros(owners.size, np.bool_)
    for b in range(bags.size - 1):
        for i in range(bags[b] - first, bags[b + 1] - first):
            by_bag[inverse[i]] = pooled[owners[inverse[i]], b % features]
    places = np.empty(owners.size, np.int32)
    for p in range(starts.size - 1):
        single, row = 0, 0
        for d in range(starts[p], starts[p + 1]):
            if by_bag[d]:
                places[d] = row
                row += 1
            else:
                places[d] = single
                single += 1
    return places, by_bag


@njit(cache=True, nogil=True)
def count_sums(
    bags: np.ndarray, inverse: np.ndarray, owners: np.ndarray, by_bag: np.ndarray, servers: int
) -> tuple[np.ndarray, np.ndarray]:
    """How many partial sums each PS pools, and of how many ids; int64 (PSs,) each."""
    sums, ids, last = np.zeros(servers, np.int64), np.zeros(servers, np.int64), np.full(servers, -1, np.int64)
    first = bags[0]
    for b in range(bags.size - 1):
        for i in range(bags[b] - first, bags[b + 1] - first):
            p = owners[inverse[i]]
            if by_bag[inverse[i]]:
                ids[p] += 1
                sums[p] += last[p] != b
                last[p] = b
    return sums, ids


@njit(cache=True, nogil=True)
def fill_sums(
    bags: np.ndarray, inverse: np.ndarray, weights: np.ndarray, owners: np.ndarray, places: np.ndarray,
    by_bag: np.ndarray, sum_first: np.ndarray, id_first: np.ndarray, reply_first: np.ndarray, sum_bags: np.ndarray,
    sum_ends: np.ndarray, id_rows: np.ndarray, id_weights: np.ndarray, term_ends: np.ndarray, term_places: np.ndarray,
    term_weights: np.ndarray,
) -> None:  # fmt: skip
    """Write down the partial sums by PS, and of which terms each bag is the sum.

    weights: of all ids, empty if all are 1; places, by_bag: of ``places_of``; ..._first int64 (PSs,): where the sums,
    the ids and the replies of each PS begin. Of each sum int32: its bag, and the end of its ids among those of the PS;
    of each id: unique row int32 and weight float32. Of each bag: ends of its terms int64 (bags + 1,), their places in
    the replies int32 and weights float32. The single rows of a PS come before its sums there.
    """
    servers, first, count = sum_first.size, bags[0], 0
    last, sums, ids = np.full(servers, -1, np.int64), np.zeros(servers, np.int64), np.zeros(servers, np.int64)
    singles = np.zeros(servers, np.int64)
    for d in range(owners.size):
        singles[owners[d]] += not by_bag[d]
    term_ends[0] = 0
    for b in range(bags.size - 1):
        for i in range(bags[b] - first, bags[b + 1] - first):
            d = inverse[i]
            p = owners[d]
            if not by_bag[d]:
                term_places[count] = reply_first[p] + places[d]
                if weights.size:
                    term_weights[count] = weights[i]
                count += 1
                continue
            if last[p] != b:
                last[p] = b
                sum_bags[sum_first[p] + sums[p]] = b
                term_places[count] = reply_first[p] + singles[p] + sums[p]
                if weights.size:
                    term_weights[count] = np.float32(1.0)
                count += 1
                sums[p] += 1
            id_rows[id_first[p] + ids[p]] = d
            if weights.size:
                id_weights[id_first[p] + ids[p]] = weights[i]
            ids[p] += 1
            sum_ends[sum_first[p] + sums[p] - 1] = ids[p]
        term_ends[b + 1] = count
