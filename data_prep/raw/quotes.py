"""Where rows of text end whose values may be quoted."""

from __future__ import annotations

import numpy as np

from ssmpi.runtime.compiled.jit import njit

QUOTE, NEWLINE = ord('"'), ord("\n")
BEGINS, GOES_ON, QUOTED = 0, 1, 2  # states of a value


@njit(cache=True, nogil=True)
def row_ends(text: np.ndarray, separator: int) -> tuple[np.ndarray, bool]:
    """The ends of the rows of ``text`` uint8, which begins with one, int64 (ends,): behind each newline outside quoted
    values; and whether the text ends inside one. As in pyarrow, a quote opens where a value begins, and "" is a quote.
    """
    ends = np.empty(np.count_nonzero(text == NEWLINE), dtype=np.int64)
    rows, state, at = 0, BEGINS, 0
    while at < text.size:
        byte = text[at]
        if state == QUOTED:
            if byte == QUOTE:
                if at + 1 < text.size and text[at + 1] == QUOTE:
                    at += 1
                else:
                    state = GOES_ON
        elif byte == NEWLINE:
            ends[rows] = at + 1
            rows, state = rows + 1, BEGINS
        elif byte == separator:
            state = BEGINS
        else:
            state = QUOTED if byte == QUOTE and state == BEGINS else GOES_ON
        at += 1
    return ends[:rows], state == QUOTED
