"""The inner loops of ``trackers``, compiled and run without the GIL.

``parts`` int64 (parts, 3) are a PS's parts in arena order: first row, end, and 1 where all rows are saved every time.
Rows are int32 arena rows. Other threads may be counting at the same time: losing an access that way is harmless.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import uint64

from ssmpi.embedding.precision import widen
from ssmpi.runtime.compiled.hash_table import mix
from ssmpi.runtime.compiled.jit import njit

MOST_ACCESSES = np.uint32(0xFFFFFFFF)
SEEN, LISTED, SAMPLED, KNOWN = range(4)  # indexes of the numbers in the head of an SSU list
GOLDEN = 0x9E3779B97F4A7C15


@njit(cache=True, nogil=True)
def count(counts: np.ndarray, rows: np.ndarray, times: np.ndarray) -> None:
    """counts[rows[k]] += times[k], uint32, up to ``MOST_ACCESSES``; ``times`` are int32, at least 0."""
    for k in range(rows.shape[0]):
        before = counts[rows[k]]
        counts[rows[k]] = before + min(np.uint32(times[k]), MOST_ACCESSES - before)


@njit(cache=True, nogil=True)
def sample(
    rows: np.ndarray,
    times: np.ndarray,
    parts: np.ndarray,
    period: int,
    seed: int,
    head: np.ndarray,
    listed: np.ndarray,
    ids: np.ndarray,
) -> None:
    """Sample one access in ``period`` into the list ``ids`` int32 (capacity,); in a full list it replaces a random row.
    Row ``rows[k]`` has ``times[k]`` accesses, int32.

    ``head`` int64 (4,) are the numbers SEEN ...; ``listed`` uint8 has a bit for each row.
    """
    seen = head[SEEN]
    for k in range(rows.shape[0]):
        row, samples, chance = rows[k], 0, uint64(0)
        for _ in range(times[k]):
            seen += 1
            drawn = mix(uint64(seen) * uint64(GOLDEN) + uint64(seed))
            if _below(drawn, period) == 0:  # at random: every period-th row would favour some features
                samples, chance = samples + 1, drawn
        if samples == 0 or not _selectable(row, parts):
            continue
        head[SAMPLED] += samples
        if listed[row >> 3] & (1 << (row & 7)):
            head[KNOWN] += samples
            continue
        head[KNOWN] += samples - 1
        slot = head[LISTED]
        if slot < ids.shape[0]:
            head[LISTED] = slot + 1
        else:
            slot = _below(mix(chance), ids.shape[0])
            evicted = ids[slot]
            listed[evicted >> 3] &= ~(1 << (evicted & 7))
        ids[slot] = row
        listed[row >> 3] |= 1 << (row & 7)
    head[SEEN] = seen


@njit(cache=True, nogil=True)
def _below(chance: Any, limit: int) -> Any:
    """A number in [0, limit) from 64 random bits, without a division; limit <= 2^31."""
    return np.int64(((chance >> uint64(32)) * uint64(limit)) >> uint64(32))


@njit(cache=True, nogil=True)
def _selectable(row: int, parts: np.ndarray) -> bool:
    for p in range(parts.shape[0]):
        if parts[p, 0] <= row < parts[p, 1]:
            return bool(parts[p, 2] == 0)
    return False


@njit(cache=True, nogil=True)
def take_listed(parts: np.ndarray, head: np.ndarray, listed: np.ndarray, ids: np.ndarray, out: np.ndarray) -> int:
    """Write the rows of the list, and those of parts saved whole, into ``out`` in order, and empty the list; returns
    how many. Linear: a bit for each row sorts them. Rows listed meanwhile may be lost, and never exceed the list's
    length.
    """
    found = min(head[LISTED], np.int64(ids.shape[0]))
    listed[:] = 0
    for k in range(found):
        listed[ids[k] >> 3] |= 1 << (ids[k] & 7)
    head[LISTED] = head[SAMPLED] = head[KNOWN] = 0
    n, space = 0, ids.shape[0]
    for p in range(parts.shape[0]):
        for row in range(parts[p, 0], parts[p, 1]):
            if parts[p, 2]:
                out[n] = row
                n += 1
            elif space > 0 and listed[row >> 3] & (1 << (row & 7)):
                out[n] = row
                n, space = n + 1, space - 1
    listed[:] = 0
    return n


@njit(cache=True, nogil=True)
def largest(keys: np.ndarray, parts: np.ndarray, most: int, out: np.ndarray) -> int:
    """Write the rows with the ``most`` largest keys above 0, and all of parts saved whole, into ``out`` in order;
    returns how many. Among equal keys the first rows win.

    Keys are uint32 (rows,). Linear: two counting passes, over the upper and the lower halves of the keys, find the
    least key that is taken.
    """
    upper, lower = np.zeros(65536, np.int64), np.zeros(65536, np.int64)
    for p in range(parts.shape[0]):
        if parts[p, 2] == 0:
            for row in range(parts[p, 0], parts[p, 1]):
                if keys[row] > 0:
                    upper[keys[row] >> 16] += 1
    left, high = _last_bin(upper, most)
    for p in range(parts.shape[0]):
        if parts[p, 2] == 0:
            for row in range(parts[p, 0], parts[p, 1]):
                if keys[row] > 0 and keys[row] >> 16 == high:
                    lower[keys[row] & 0xFFFF] += 1
    ties, low = _last_bin(lower, left)
    least = (high << 16) | low
    n, space = 0, most
    for p in range(parts.shape[0]):
        for row in range(parts[p, 0], parts[p, 1]):
            if parts[p, 2]:
                out[n] = row
                n += 1
            elif space > 0 and keys[row] > 0 and keys[row] >= least:
                if keys[row] == least:
                    if ties == 0:
                        continue
                    ties -= 1
                out[n] = row
                n += 1
                space -= 1
    return n


@njit(cache=True, nogil=True)
def _last_bin(bins: np.ndarray, most: int) -> tuple[int, int]:
    """Going down from the highest bin: how many of ``most`` are left for the bin in which they end, and that bin."""
    for k in range(bins.shape[0] - 1, 0, -1):
        if bins[k] >= most:
            return most, k
        most -= bins[k]
    return most, 0


@njit(cache=True, nogil=True)
def square_changes(weights: np.ndarray, saved: np.ndarray, parts: np.ndarray, out: np.ndarray) -> None:
    """out[r] = sum of squares of weights[r] - saved[r], float32, for rows of parts that are not saved whole."""
    for p in range(parts.shape[0]):
        if parts[p, 2] == 0:
            for row in range(parts[p, 0], parts[p, 1]):
                total = np.float32(0.0)
                for j in range(weights.shape[1]):
                    change = widen(weights[row, j]) - widen(saved[row, j])
                    total += change * change
                out[row] = total


@njit(cache=True, nogil=True)
def copy_rows(weights: np.ndarray, rows: np.ndarray, out: np.ndarray) -> None:
    """out[rows[k]] = weights[rows[k]]."""
    for k in range(rows.shape[0]):
        for j in range(weights.shape[1]):
            out[rows[k], j] = weights[rows[k], j]


@njit(cache=True, nogil=True)
def clear(counts: np.ndarray, rows: np.ndarray) -> None:
    """counts[rows[k]] = 0."""
    for k in range(rows.shape[0]):
        counts[rows[k]] = 0
