"""Parses Criteo's raw rows: label, 13 integers, 26 hexadecimal tokens, tab-separated, empty where missing.

The compiled loop parses whole blocks, eight bytes at a time if possible, and stops at the first bad row; ``diagnose``
then explains it in plain Python.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from data_prep.rows import Rows, Tally, Tokens
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


# most integers are small: looking up their logarithm is faster than computing it
LOGARITHMS = np.log1p(np.arange(4096, dtype=np.float64)).astype(np.float32)


class ParsedColumns(NamedTuple):
    """Parsed rows, column by column. ``missing`` has bit f set when field f (13 integers, then 26 tokens) was empty."""

    label: np.ndarray  # uint8 (rows,); zeros when unlabelled
    integers: np.ndarray  # int64 (rows, 13), max(x, 0), missing 0
    tokens: np.ndarray  # uint32 (26, rows), missing 0
    missing: np.ndarray  # int64 (rows,)


@dataclass
class CriteoRows(Rows):
    """``dense`` int64 (13, rows): max(x, 0), missing 0. The ``missing`` of all tokens has the bits of all fields."""

    def tally(self, into: Tally) -> None:
        """Count labels, missing fields and the largest integers."""
        into.positives += _tally(self.label, self.dense.T, self.tokens[0].missing, into.missing, into.largest)

    def counted(self, into: Tally) -> Rows:
        """All of them."""
        return self


def room_for(rows: int) -> ParsedColumns:
    """Empty columns for at most ``rows`` rows."""
    return ParsedColumns(
        np.zeros(rows, dtype=np.uint8),
        np.empty((rows, DENSE_FEATURES), dtype=np.int64),
        np.empty((SPARSE_FEATURES, rows), dtype=np.uint32),
        np.empty(rows, dtype=np.int64),
    )


def first_rows(columns: ParsedColumns, rows: int) -> CriteoRows:
    """The first ``rows`` rows, as views."""
    missing = columns.missing[:rows]
    tokens = [Tokens(one, missing, DENSE_FEATURES + f) for f, one in enumerate(columns.tokens[:, :rows])]
    return CriteoRows(columns.label[:rows], columns.integers[:rows].T, tokens)


@njit(cache=True, nogil=True)
def logarithm(value: Integer) -> np.float32:
    """The dense value ln(1 + x) of an integer x >= 0."""
    return LOGARITHMS[value] if value < LOGARITHMS.size else np.float32(np.log1p(np.float64(value)))


@njit(cache=True, nogil=True)
def logarithms(integers: np.ndarray) -> np.ndarray:
    """The dense values float32 of integers int64, same shape (rows, features)."""
    out = np.empty(integers.shape, dtype=np.float32)
    for row in range(integers.shape[0]):
        for f in range(integers.shape[1]):
            out[row, f] = logarithm(integers[row, f])
    return out


@njit(cache=True, nogil=True)
def count_rows(text: np.ndarray) -> int:
    """The number of newlines in ``text`` uint8."""
    found = 0
    for character in text:
        found += 1 if character == NEWLINE else 0
    return found


@njit(cache=True, nogil=True)
def row_end(text: np.ndarray, at: Integer) -> Integer:
    """The position of the newline that ends the row of byte ``at``."""
    while text[at] != NEWLINE:
        at += 1
    return at


@njit(cache=True, nogil=True)
def _integers(text: np.ndarray, at: Integer, out: np.ndarray) -> tuple[Integer, Integer, bool]:
    """Read the integers of a row into ``out``: (bits of missing fields, position after them, whether all are valid)."""
    absent: Integer = 0
    for f in range(DENSE_FEATURES):
        value, digits = short_integer(word(text, at)) if at + 8 <= text.size else (0, -1)
        if digits < 0:
            value, after, good = read_integer(text, at)
            if not good or text[after] != TAB:
                return absent, at, False
            digits = after - at
        out[f] = max(value, 0)
        absent |= np.int64(digits == 0) << f
        at += digits + 1
    return absent, at, True


@njit(cache=True, nogil=True)
def _tokens(text: np.ndarray, at: Integer, row: Integer, out: np.ndarray) -> tuple[Integer, Integer, bool]:
    """Read the tokens of a row into ``out`` (26, rows), and the end of the row; returns the same as ``_integers``."""
    absent: Integer = 0
    for f in range(SPARSE_FEATURES):
        last = f == SPARSE_FEATURES - 1
        end = NEWLINE if last else TAB
        if at + 8 < text.size and text[at + 8] == end:
            token, good = whole_token(word(text, at))
            if good:
                out[f, row] = token
                at += 9
                continue
        value, after = read_token(text, at)
        if after - at > 8:
            return absent, at, False
        absent |= np.int64(after == at) << (DENSE_FEATURES + f)
        out[f, row] = value
        at = after
        if last and text[at] == RETURN:
            at += 1
        if text[at] != end:
            return absent, at, False
        at += 1
    return absent, at, True


@njit(cache=True, nogil=True)
def parse(text: np.ndarray, at: Integer, row: int, labelled: bool, out: ParsedColumns) -> tuple[int, Integer, bool]:
    """Parse rows from byte ``at`` on into ``out`` from ``row`` on: (rows in ``out``, position, whether all were valid).

    ``text`` uint8, every row ended by a newline. Stops with the position of the first bad row.
    """
    while at < text.size:
        here = at
        if labelled:
            label = np.int64(text[at]) - ZERO
            if label < 0 or label > 1 or text[at + 1] != TAB:
                return row, here, False
            out.label[row] = label
            at += 2
        no_integer, at, good = _integers(text, at, out.integers[row])
        if not good:
            return row, here, False
        no_token, at, good = _tokens(text, at, row, out.tokens)
        if not good:
            return row, here, False
        out.missing[row] = no_integer | no_token
        row += 1
    return row, at, True


@njit(cache=True, nogil=True)
def _tally(label: np.ndarray, integers: np.ndarray, missing: np.ndarray, gone: np.ndarray, largest: np.ndarray) -> int:
    """Add to ``gone`` int64 (39,) how often each field was missing and to ``largest`` int64 (13,) the largest
    integers; returns how many labels are 1."""
    for field in range(DENSE_FEATURES + SPARSE_FEATURES):
        times = 0
        for absent in missing:
            times += (absent >> field) & 1
        gone[field] += times
    for row in range(missing.size):
        for field in range(DENSE_FEATURES):
            if integers[row, field] > largest[field]:  # rarely true: cheaper than a store each time
                largest[field] = integers[row, field]
    positives = 0
    for one in label:
        positives += one
    return positives
