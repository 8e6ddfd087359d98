"""Moves the rows of keys that are used most to the beginning of their table, which lies in memory where tables lie on a
disk (``embedding.storage``), while training pauses.

A row is whole at any moment: it is copied before its key is written at the new place, and that key is cleared at the
old one afterwards. After a kill in between two rows have the same key and values; ``refill`` keeps one of them.
"""

from __future__ import annotations

import numpy as np

from ssmpi.embedding.key_kernels import RESERVED, USE
from ssmpi.runtime.compiled import atomic
from ssmpi.runtime.compiled.jit import njit

LEVELS = 256  # of use
LEAST = USE + 1  # more than that of a row that was looked up once
AT_A_TIME = 1024  # rows that are moved while the next ones are read
MOST = 1 << 18  # rows of a table that a pause moves up, for the memory that a list of them takes
SECONDS = 10.0  # that a pause spends on moves: the rest comes at the next one


@njit(cache=True, nogil=True)
def chosen(keys: np.ndarray, uses: np.ndarray, hot: int, most: int) -> tuple[np.ndarray, np.ndarray]:
    """Which rows int64 (n,) behind the ``hot`` first ones are used most, up to ``most``, and which n of these are used
    least, free ones first. A row gives way only to one that several batches looked up, and one more than itself.
    ``keys`` int64 and ``uses`` uint8 (rows,), which may be empty, so that none goes.
    """
    end = min(keys.size, uses.size)
    behind, ahead = np.zeros(LEVELS, np.int64), np.zeros(LEVELS + USE, np.int64)  # rows by use; free ones have -USE
    for row in range(hot, end):
        behind[uses[row]] += keys[row] != 0
    for row in range(RESERVED, min(hot, end)):
        ahead[uses[row] + USE if keys[row] != 0 else 0] += 1
    up, down, count = np.zeros(LEVELS, np.int64), np.zeros(LEVELS + USE, np.int64), 0  # how many of each use change
    high, low = LEVELS - 1, 0
    while high >= max(LEAST, low) and count < most:  # low - USE is the use of rows that go
        pairs = min(behind[high] - up[high], ahead[low] - down[low], most - count)
        up[high] += pairs
        down[low] += pairs
        count += pairs
        if up[high] == behind[high]:
            high -= 1
        if down[low] == ahead[low]:
            low += 1
    rising, sinking, n, free, taken = np.empty(count, np.int64), np.empty(count, np.int64), 0, 0, down[0]
    for row in range(hot, end):
        if keys[row] != 0 and up[uses[row]] > 0:
            up[uses[row]] -= 1
            rising[n] = row
            n += 1
    for row in range(RESERVED, min(hot, end)):
        level = uses[row] + USE if keys[row] != 0 else 0
        if down[level] > 0:
            down[level] -= 1
            if level == 0:
                sinking[free] = row
                free += 1
            else:
                sinking[taken] = row
                taken += 1
    return rising, sinking


@njit(cache=True, nogil=True)
def first_free(keys: np.ndarray, hot: int) -> int:
    """The first free row behind the ``hot`` ones; all rows if there is none."""
    row = hot
    while row < keys.size and keys[row] != 0:
        row += 1
    return row


def planned(keys: np.ndarray, rising: np.ndarray, sinking: np.ndarray, spare: int) -> np.ndarray:
    """Pairs of rows int64 (moves, 2), each of which moves from the first to the second, in this order. A ``sinking``
    row goes to where the last ``rising`` one came from, the first to the free row ``spare``; then a rising one comes.
    """
    away = np.stack([sinking, np.concatenate([[spare], rising])[: len(rising)]], axis=1)
    moves = np.stack([away, np.stack([rising, sinking], axis=1)], axis=1)
    return moves[np.stack([keys[sinking] != 0, np.ones(len(rising), bool)], axis=1)]


@njit(cache=True, nogil=True)
def move(
    moves: np.ndarray, keys: np.ndarray, seen: np.ndarray, uses: np.ndarray, weights: np.ndarray, state: np.ndarray,
    clocks: np.ndarray,
) -> None:  # fmt: skip
    """Move rows with all that is theirs, without the GIL; ``clocks`` are empty unless tables decay."""
    for k in range(len(moves)):
        before, after = moves[k]
        for j in range(weights.shape[1]):
            weights[after, j] = weights[before, j]
        for j in range(state.shape[1]):
            state[after, j] = state[before, j]
        if clocks.size:
            for j in range(clocks.shape[1]):
                clocks[after, j] = clocks[before, j]
        seen[after], uses[after] = seen[before], uses[before]
        atomic.store_word(keys.ctypes.data + 8 * after, keys[before])  # type: ignore[call-arg]
        atomic.store_word(keys.ctypes.data + 8 * before, 0)
        uses[before] = 0
        atomic.load_word(keys.ctypes.data + 8 * before)  # the next move writes after it
