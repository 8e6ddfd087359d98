"""Starts to read rows on disk (``embedding.storage``) before they are pulled: a pull that finds one missing waits for
it, and for the next one only then. Pages that were asked for lately are taken to be in memory.
"""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np
from numba import types, uint8

from ssmpi.runtime.compiled.jit import njit

PAGE, WILLNEED = mmap.PAGESIZE, mmap.MADV_WILLNEED
TURNS = 16  # in which a page that was asked for is not asked for again
MOST_TURNS = 256
mincore: Any = types.ExternalFunction("mincore", types.int32(types.uintp, types.uintp, types.voidptr))
madvise: Any = types.ExternalFunction("madvise", types.int32(types.uintp, types.uintp, types.int32))


@njit(cache=True, nogil=True)
def start_reading(rows: np.ndarray, values: np.ndarray, turns: np.ndarray, turn: int) -> int:
    """Start to read the pages of some ``rows`` int32 (n,) of ``values`` (all rows, width) that are not in memory; how
    many. ``turns`` uint8 (pages,) are those in which each was last asked for; this is number ``turn``.
    """
    size, start, found = values.strides[0], np.int64(values.ctypes.data), 0
    inside = np.empty(1, np.uint8)
    for row in rows:
        place = start + row * size
        for page in range(place // PAGE, (place + size - 1) // PAGE + 1):
            number = page - start // PAGE
            if uint8(turn - turns[number]) < TURNS:
                continue
            turns[number] = turn
            if mincore(page * PAGE, PAGE, inside.ctypes) == 0 and not inside[0] & 1:
                madvise(page * PAGE, PAGE, WILLNEED)
                found += 1
    return found


class StoredPages:
    """The pages of one array of rows (all rows, width) on disk. Threads share it without locks: at worst they ask
    twice, or not at all.
    """

    def __init__(self, values: np.ndarray) -> None:
        self._values = values
        self._turns, self._turn = np.zeros(values.nbytes // PAGE + 2, np.uint8), TURNS

    def start_reading(self, rows: np.ndarray) -> int:
        """Start to read the pages of some rows int32 (n,) that are not in memory; how many."""
        self._turn = (self._turn + 1) % MOST_TURNS
        return start_reading(rows, self._values, self._turns, self._turn)
