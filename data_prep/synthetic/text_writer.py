"""Turns drawn rows into raw Criteo-format text: the inverse of ``parser``. Used by ``synthesize``."""

from __future__ import annotations

import numpy as np

from data_prep.columns import DENSE_FEATURES, SPARSE_FEATURES
from data_prep.raw.fields import MINUS, NEWLINE, TAB, ZERO
from data_prep.synthetic.draws import MISSING_INTEGER
from data_prep.synthetic.teacher import DrawnRows
from ssmpi.compiled.jit import njit

MOST_ROW_BYTES = 2 + 12 * DENSE_FEATURES + 9 * SPARSE_FEATURES
HEX_DIGITS = np.frombuffer(b"0123456789abcdef", np.uint8)


class TextWriter:
    """Formats blocks of at most ``rows`` rows into one reused buffer. ``key`` (32 bits) determines the tokens' text."""

    def __init__(self, rows: int, key: int) -> None:
        self._buffer = np.empty(rows * MOST_ROW_BYTES, np.uint8)
        self._masks = token_masks(key)

    def text(self, block: DrawnRows, labelled: bool) -> memoryview:
        """The rows as text, with their label column or without; valid until the next call."""
        size = _write(
            block.label if labelled else block.label[:0], block.integer, block.token, self._masks, self._buffer
        )
        return self._buffer[:size].data


def token_masks(key: int) -> np.ndarray:
    """Two random words per feature, uint32 (26, 2), that ``token_of`` mixes in."""
    masks = np.empty((SPARSE_FEATURES, 2), np.uint32)
    for i in range(masks.size):
        masks.flat[i] = _mix32(np.uint32((key + 0x9E3779B9 * (i + 1)) & 0xFFFFFFFF))
    return masks


@njit(cache=True, nogil=True)
def _mix32(x: np.uint32) -> np.uint32:
    """The finalizer of MurmurHash3: a bijection of 32 bits."""
    x = np.uint32((x ^ (x >> np.uint32(16))) * np.uint32(0x85EBCA6B))
    x = np.uint32((x ^ (x >> np.uint32(13))) * np.uint32(0xC2B2AE35))
    return np.uint32(x ^ (x >> np.uint32(16)))


@njit(cache=True, nogil=True)
def token_of(masks: np.ndarray, feature: int, rank: int) -> np.uint32:
    """The token of the ``rank``-th most frequent value of a feature, unique per rank."""
    return np.uint32(_mix32(np.uint32(rank) ^ masks[feature, 0]) ^ masks[feature, 1])


@njit(cache=True, nogil=True)
def _write_integer(value: int, out: np.ndarray, at: int) -> int:
    if value < 0:
        out[at] = MINUS
        at += 1
        value = -value
    digits = 1
    bound = 10
    while value >= bound:
        digits += 1
        bound *= 10
    for i in range(digits - 1, -1, -1):
        out[at + i] = ZERO + value % 10
        value //= 10
    return at + digits


@njit(cache=True, nogil=True)
def _write(label: np.ndarray, integer: np.ndarray, token: np.ndarray, masks: np.ndarray, out: np.ndarray) -> int:
    """Write all rows, without a label column if ``label`` is empty; returns the bytes written."""
    at = 0
    for r in range(len(integer)):
        if label.size:
            out[at] = ZERO + label[r]
            out[at + 1] = TAB
            at += 2
        for j in range(DENSE_FEATURES):
            if integer[r, j] != MISSING_INTEGER:
                at = _write_integer(int(integer[r, j]), out, at)
            out[at] = TAB
            at += 1
        for f in range(SPARSE_FEATURES):
            if token[r, f] >= 0:
                name = token_of(masks, f, token[r, f])
                for digit in range(8):
                    out[at + digit] = HEX_DIGITS[(name >> np.uint32(28 - 4 * digit)) & np.uint32(15)]
                at += 8
            out[at] = TAB
            at += 1
        out[at - 1] = NEWLINE
    return at
