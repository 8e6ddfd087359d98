"""The fields of Criteo's raw rows, and compiled readers of an integer or a hexadecimal token, eight bytes at a time if
possible.

Used by ``parser``, which reads whole rows.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ssmpi.data.features import CRITEO
from ssmpi.runtime.compiled.jit import njit

DENSE_NAMES, SPARSE_NAMES = CRITEO.dense, CRITEO.sparse
DENSE_FEATURES, SPARSE_FEATURES = len(DENSE_NAMES), len(SPARSE_NAMES)

Integer = int | np.integer[Any]

TAB, NEWLINE, RETURN, MINUS, ZERO, ONE = 9, 10, 13, 45, 48, 49
INT64_MAX = 2**63 - 1
SAFE = INT64_MAX // 10
LAST_DIGIT = INT64_MAX % 10

HEX = np.full(256, 255, dtype=np.uint8)
HEX[ZERO : ZERO + 10] = np.arange(10)
HEX[ord("a") : ord("a") + 6] = HEX[ord("A") : ord("A") + 6] = np.arange(10, 16)


U = np.uint64  # numba computes mixed signed and unsigned arithmetic in floating point


def _each(byte: int) -> np.uint64:
    return U(byte * 0x0101010101010101)


ONES, HIGH = _each(0x01), _each(0x80)
_TABS, _ZEROS, _SPACES, _LOW_HALVES = _each(TAB), _each(ZERO), _each(ord(" ")), _each(0x0F)
_FROM_0, _ABOVE_9, _OVER_NINE = _each(0x80 - ZERO), _each(0x7F - ord("9")), _each(0x7F - 9)
_FROM_A, _ABOVE_F = _each(0x80 - ord("a")), _each(0x7F - ord("f"))


@njit(cache=True, nogil=True)
def read_integer(text: np.ndarray, at: Integer) -> tuple[Integer, Integer, bool]:
    """Read an integer: (value, position after it, whether it is valid). An empty field is missing."""
    start = at
    negative = text[at] == MINUS
    if negative:
        at += 1
    digits = at
    value: Integer = 0
    good = True
    while True:
        d = np.int64(text[at]) - ZERO
        if d < 0 or d > 9:
            break
        if value > SAFE or (value == SAFE and d > LAST_DIGIT):
            good = False
            value = 0
        value = value * 10 + d
        at += 1
    if negative:
        value = -value
    return value, at, bool(good and (at > digits or at == start))


@njit(cache=True, nogil=True)
def word(text: np.ndarray, at: Integer) -> np.uint64:
    """The eight bytes from ``at`` on, the first one lowest; compiled to a single load."""
    i = U(at)
    low = U(text[i]) | U(text[i + U(1)]) << U(8) | U(text[i + U(2)]) << U(16) | U(text[i + U(3)]) << U(24)
    high = U(text[i + U(4)]) | U(text[i + U(5)]) << U(8) | U(text[i + U(6)]) << U(16) | U(text[i + U(7)]) << U(24)
    return low | high << U(32)


@njit(cache=True, nogil=True)
def short_integer(word: np.uint64) -> tuple[Integer, Integer]:
    """(value, digits) of up to seven digits followed by a tab, eight bytes at a time; digits -1 for anything else.

    The tab is the lowest zero byte of ``word ^ tabs``. Digits are shifted to the high end and summed in pairs.
    """
    differs = word ^ _TABS
    tabs = (differs - ONES) & ~differs & HIGH
    first = (tabs & (~tabs + U(1))) >> U(7)
    digits = (word ^ _ZEROS) & (first - U(1))
    if tabs == U(0) or ((digits | (digits + _OVER_NINE)) & HIGH) != U(0):
        return 0, -1
    count = (first * U(0x0001020304050607)) >> U(56)
    value = (digits << U(8)) << (U(56) - (count << U(3)))
    value = (value * U(10 * 0x100 + 1)) >> U(8)
    value = ((value & U(0x00FF00FF00FF00FF)) * U(100 * 0x10000 + 1)) >> U(16)
    value = ((value & U(0x0000FFFF0000FFFF)) * U(10000 * 0x100000000 + 1)) >> U(32)
    return np.int64(value), np.int64(count)


@njit(cache=True, nogil=True)
def whole_token(word: np.uint64) -> tuple[np.uint32, bool]:
    """(token, True) if all eight bytes are hexadecimal digits.

    The range checks ('0' to '9', and so on) add constants that carry into a byte's high bit if it is large enough.
    """
    lower = word | _SPACES
    digit = (word + _FROM_0) & ~(word + _ABOVE_9)
    letter = (lower + _FROM_A) & ~(lower + _ABOVE_F)
    good = ((digit | letter) & ~word & HIGH) == HIGH
    value = (word & _LOW_HALVES) + U(9) * ((word >> U(6)) & ONES)
    value = ((value & U(0x00FF00FF00FF00FF)) << U(4)) | ((value >> U(8)) & U(0x00FF00FF00FF00FF))
    value = ((value & U(0x0000FFFF0000FFFF)) << U(8)) | ((value >> U(16)) & U(0x0000FFFF0000FFFF))
    return np.uint32(((value & U(0xFFFF)) << U(16)) | (value >> U(32))), good


@njit(cache=True, nogil=True)
def read_token(text: np.ndarray, at: Integer) -> tuple[Integer, Integer]:
    """Read any number of hexadecimal digits: (value, position after them)."""
    value: Integer = 0
    while True:
        digit = np.int64(HEX[text[at]])
        if digit > 15:
            return value, at
        value = (value << 4) | digit
        at += 1
