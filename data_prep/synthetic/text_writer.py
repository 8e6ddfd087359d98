"""Turns drawn rows into text: raw Criteo-format text, the inverse of ``parser``, or a table whose columns are lists.
Used by ``synthesize``.
"""

from __future__ import annotations

import numpy as np

from data_prep.columns import DENSE_FEATURES, SPARSE_FEATURES
from data_prep.raw.fields import MINUS, NEWLINE, TAB, ZERO
from data_prep.synthetic.draws import MISSING_INTEGER
from data_prep.synthetic.multi_hot import BAR, ONE_HOT, MultiHot, other_token
from data_prep.synthetic.teacher import DrawnRows
from ssmpi.runtime.compiled.jit import njit

HEX_DIGITS = np.frombuffer(b"0123456789abcdef", np.uint8)


class TextWriter:
    """Formats blocks of at most ``rows`` rows into one reused buffer. ``key`` (32 bits) determines the tokens' text."""

    def __init__(self, rows: int, key: int, lists: MultiHot = ONE_HOT) -> None:
        self._buffer = np.empty(rows * most_row_bytes(lists), np.uint8)
        self._masks, self._lists = token_masks(key), lists

    def text(self, block: DrawnRows, labelled: bool) -> memoryview:
        """The rows as text, with their label column or without; valid until the next call."""
        label = block.label if labelled else block.label[:0]
        size = _write(label, block.integer, block.token, self._masks, self._lists, self._buffer)
        return self._buffer[:size].data


def most_row_bytes(lists: MultiHot = ONE_HOT) -> int:
    """The most bytes of a row."""
    return 2 + 12 * DENSE_FEATURES + 9 * int(lists.counts.sum())


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
def _write_token(token: np.uint32, out: np.ndarray, at: int) -> int:
    for digit in range(8):
        out[at + digit] = HEX_DIGITS[(token >> np.uint32(28 - 4 * digit)) & np.uint32(15)]
    return at + 8


@njit(cache=True, nogil=True)
def _write(
    label: np.ndarray, integer: np.ndarray, token: np.ndarray, masks: np.ndarray, lists: MultiHot, out: np.ndarray
) -> int:
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
                at = _write_token(token_of(masks, f, token[r, f]), out, at)
                for k in range(1, lists.counts[f]):
                    out[at] = BAR
                    other = other_token(masks[f], lists.cardinality[f], token[r, f], k)
                    at = _write_token(token_of(masks, f, other), out, at + 1)
            out[at] = TAB
            at += 1
        out[at - 1] = NEWLINE
    return at
