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

LEAST = USE + 1  # more than that of a row that was looked up once
AT_A_TIME = 1024  # rows that are moved while the next ones are read


def planned(keys: np.ndarray, uses: np.ndarray, hot: int, spare: int) -> np.ndarray:
    """From where to where rows move, int64 (moves, 2), in this order: those used most behind the ``hot`` first ones to
    the places of those used least among these, free ones first. A row whose place is taken goes to where the last one
    came from, the first of them to the free row ``spare``; without one, -1, none goes. ``keys`` int64 and ``uses``
    uint8 (rows,).

    A row goes only for one that at least one more batch looked up, and that more than one did.
    """
    use = np.where(keys != 0, uses, np.int16(-USE))
    up, down = hot + np.flatnonzero(use[hot:] >= LEAST), np.arange(RESERVED, hot)
    up, down = (rows[np.argsort(sign * use[rows], kind="stable")] for rows, sign in ((up, -1), (down, 1)))
    count = min(len(up), len(down))
    count = int(np.count_nonzero(use[up[:count]] >= use[down[:count]] + USE))
    free = int(np.count_nonzero(use[down[:count]] < 0))
    if spare < 0 and not free:
        return np.empty((0, 2), np.int64)
    up, down = np.sort(up[:count]), np.concatenate([down[:free], np.sort(down[free:count])])
    away = np.stack([down, np.concatenate([[spare], up])[:count]], axis=1)
    moves = np.stack([away, np.stack([up, down], axis=1)], axis=1)
    taken = np.stack([use[down] >= 0, np.ones(count, bool)], axis=1)
    return moves[taken]


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
