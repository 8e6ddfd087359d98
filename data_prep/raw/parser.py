"""Parses raw rows: label, 13 integers, 26 hexadecimal tokens, tab-separated, empty where missing.

The compiled loop takes whole blocks and stops at the first row that is not right; ``diagnose`` then says in plain
Python what is wrong with it. Used by both passes and by ``encode``.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import numpy as np
from numba import njit

from ssmpi.data.schema import DENSE_FEATURES, DENSE_NAMES, SPARSE_FEATURES, SPARSE_NAMES

Integer = int | np.integer[Any]

TAB, NEWLINE, RETURN, MINUS, ZERO, ONE = 9, 10, 13, 45, 48, 49
INT64_MAX = 2**63 - 1
SAFE = INT64_MAX // 10
LAST_DIGIT = INT64_MAX % 10
FIELDS = {True: 1 + DENSE_FEATURES + SPARSE_FEATURES, False: DENSE_FEATURES + SPARSE_FEATURES}

HEX = np.full(256, 255, dtype=np.uint8)
HEX[ZERO : ZERO + 10] = np.arange(10)
HEX[ord("a") : ord("a") + 6] = HEX[ord("A") : ord("A") + 6] = np.arange(10, 16)


# most integers are small: reading their logarithm is faster than computing it
LOGARITHMS = np.log1p(np.arange(4096, dtype=np.float64)).astype(np.float32)

U = np.uint64  # compiled arithmetic with signed and unsigned mixed would be in floating point


def _each(byte: int) -> np.uint64:
    return U(byte * 0x0101010101010101)


ONES, HIGH = _each(0x01), _each(0x80)
_TABS, _ZEROS, _SPACES, _LOW_HALVES = _each(TAB), _each(ZERO), _each(ord(" ")), _each(0x0F)
_FROM_0, _ABOVE_9, _OVER_NINE = _each(0x80 - ZERO), _each(0x7F - ord("9")), _each(0x7F - 9)
_FROM_A, _ABOVE_F = _each(0x80 - ord("a")), _each(0x7F - ord("f"))


class Rows(NamedTuple):
    """Parsed rows, column by column. ``missing`` has bit f set when field f (13 integers, then 26 tokens) was empty."""

    label: np.ndarray  # uint8 (rows,); zeros when unlabelled
    integers: np.ndarray  # int64 (rows, 13), max(x, 0), missing 0
    tokens: np.ndarray  # uint32 (26, rows), missing 0
    missing: np.ndarray  # int64 (rows,)

    def head(self, rows: int) -> Rows:
        """The first ``rows`` rows, as views."""
        return self.part(0, rows)

    def part(self, start: int, stop: int) -> Rows:
        """Rows ``[start, stop)``, as views."""
        cut = slice(start, stop)
        return Rows(self.label[cut], self.integers[cut], self.tokens[:, cut], self.missing[cut])

    @property
    def rows(self) -> int:
        """Number of rows."""
        return len(self.missing)


def room_for(rows: int) -> Rows:
    """Empty columns for at most ``rows`` rows."""
    return Rows(
        np.zeros(rows, dtype=np.uint8),
        np.empty((rows, DENSE_FEATURES), dtype=np.int64),
        np.empty((SPARSE_FEATURES, rows), dtype=np.uint32),
        np.empty(rows, dtype=np.int64),
    )


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
    """How many newlines there are in ``text`` uint8."""
    found = 0
    for character in text:
        found += 1 if character == NEWLINE else 0
    return found


@njit(cache=True, nogil=True)
def row_end(text: np.ndarray, at: Integer) -> Integer:
    """Where the newline is that ends the row which holds byte ``at``."""
    while text[at] != NEWLINE:
        at += 1
    return at


@njit(cache=True, nogil=True)
def _integer(text: np.ndarray, at: Integer) -> tuple[Integer, Integer, bool]:
    """Read an integer: (value, position after it, whether what is there is one). Nothing there is missing."""
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
    """The eight bytes from ``at`` on, the first one lowest: the compiler makes one load of this."""
    i = U(at)
    low = U(text[i]) | U(text[i + U(1)]) << U(8) | U(text[i + U(2)]) << U(16) | U(text[i + U(3)]) << U(24)
    high = U(text[i + U(4)]) | U(text[i + U(5)]) << U(8) | U(text[i + U(6)]) << U(16) | U(text[i + U(7)]) << U(24)
    return low | high << U(32)


@njit(cache=True, nogil=True)
def _short_integer(word: np.uint64) -> tuple[Integer, Integer]:
    """(value, digits) of up to seven digits that a tab ends, eight bytes at a time; digits -1 for anything else.

    The tab is the lowest byte that is zero in ``word ^ tabs``. Digits are moved to the high end and added up in pairs.
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
def _whole_token(word: np.uint64) -> tuple[np.uint32, bool]:
    """(token, True) if all eight bytes are hexadecimal digits.

    Added constants carry a byte that is large enough into its high bit: at least '0' and not above '9', and so on.
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
def _token(text: np.ndarray, at: Integer) -> tuple[Integer, Integer]:
    """Read any number of hexadecimal digits: (value, position after them)."""
    value: Integer = 0
    while True:
        digit = np.int64(HEX[text[at]])
        if digit > 15:
            return value, at
        value = (value << 4) | digit
        at += 1


@njit(cache=True, nogil=True)
def _integers(text: np.ndarray, at: Integer, out: np.ndarray) -> tuple[Integer, Integer, bool]:
    """Read the integers of a row into ``out``: (bits of the missing ones, position after them, whether all are good)."""
    absent: Integer = 0
    for f in range(DENSE_FEATURES):
        value, digits = _short_integer(word(text, at)) if at + 8 <= text.size else (0, -1)
        if digits < 0:
            value, after, good = _integer(text, at)
            if not good or text[after] != TAB:
                return absent, at, False
            digits = after - at
        out[f] = max(value, 0)
        absent |= np.int64(digits == 0) << f
        at += digits + 1
    return absent, at, True


@njit(cache=True, nogil=True)
def _tokens(text: np.ndarray, at: Integer, row: Integer, out: np.ndarray) -> tuple[Integer, Integer, bool]:
    """Read the tokens of a row into ``out`` (26, rows), and the end of the row: as ``_integers``."""
    absent: Integer = 0
    for f in range(SPARSE_FEATURES):
        last = f == SPARSE_FEATURES - 1
        end = NEWLINE if last else TAB
        if at + 8 < text.size and text[at + 8] == end:
            token, good = _whole_token(word(text, at))
            if good:
                out[f, row] = token
                at += 9
                continue
        value, after = _token(text, at)
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
def parse(text: np.ndarray, at: Integer, row: int, labelled: bool, out: Rows) -> tuple[int, Integer, bool]:
    """Parse rows from byte ``at`` on into ``out`` from ``row`` on: (rows in ``out``, position, whether all were good).

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
def tally(rows: Rows, missing: np.ndarray, largest: np.ndarray) -> int:
    """Add to ``missing`` int64 (39,) how often each field was missing and to ``largest`` int64 (13,) the largest
    integers; returns how many labels are 1."""
    for field in range(DENSE_FEATURES + SPARSE_FEATURES):
        times = 0
        for absent in rows.missing:
            times += (absent >> field) & 1
        missing[field] += times
    for row in range(rows.missing.size):
        for field in range(DENSE_FEATURES):
            if rows.integers[row, field] > largest[field]:  # hardly ever: cheaper than a store each time
                largest[field] = rows.integers[row, field]
    positives = 0
    for label in rows.label:
        positives += label
    return positives


def shorten(content: bytes) -> str:
    """A readable, bounded picture of raw bytes for a message."""
    text = content.decode("utf-8", "backslashreplace")
    return repr(text if len(text) <= 60 else text[:40] + "..." + text[-12:])


def diagnose(row: bytes, labelled: bool) -> tuple[str, str] | None:
    """What is wrong with one row (without its newline): (reason, what was found and the remedy); None if nothing."""
    fields = row.removesuffix(b"\r").split(b"\t")
    wanted = FIELDS[labelled]
    kind = "labelled" if labelled else "unlabelled"
    if b"\x00" in row:
        return "NUL byte", f"a NUL byte in {shorten(row)}; the file is damaged or not plain text, fetch it again"
    if len(fields) != wanted:
        reason = "too few fields" if len(fields) < wanted else "too many fields"
        hint = "repair or remove the row"
        if len(fields) == FIELDS[not labelled]:
            hint = "labelled and unlabelled rows cannot be mixed: prepare them apart"
        return reason, f"{len(fields)} fields, expected {wanted} ({kind}) in {shorten(row)}; {hint}"
    if labelled and fields[0] not in (b"0", b"1"):
        return "label", f"label {shorten(fields[0])} is not 0 or 1; repair or remove the row"
    first = 1 if labelled else 0
    for name, field in zip(DENSE_NAMES, fields[first:], strict=False):
        if field and not re.fullmatch(rb"-?[0-9]+", field):
            return "integer", f"{name} is {shorten(field)}, not an integer; repair or remove the row"
        digits = field.lstrip(b"-").lstrip(b"0")
        if len(digits) > 19 or int(digits or b"0") > INT64_MAX:
            return "integer range", f"{name} is {shorten(field)}, beyond 64 bits; repair or remove the row"
    for name, field in zip(SPARSE_NAMES, fields[first + DENSE_FEATURES :], strict=True):
        if not re.fullmatch(rb"[0-9a-fA-F]*", field):
            return "token", f"{name} is {shorten(field)}, not a hexadecimal token; repair or remove the row"
        if len(field) > 8:
            return (
                "token length",
                f"{name} is {shorten(field)}, {len(field)} digits, at most 8; repair or remove the row",
            )
    return None
