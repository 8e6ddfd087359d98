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


class Rows(NamedTuple):
    """Parsed rows, column by column. ``missing`` has bit f set when field f (13 integers, then 26 tokens) was empty."""

    label: np.ndarray  # uint8 (rows,); zeros when unlabelled
    dense: np.ndarray  # float32 (rows, 13), ln(1 + max(x, 0)), missing 0
    tokens: np.ndarray  # uint32 (26, rows), missing 0
    missing: np.ndarray  # int64 (rows,)

    def head(self, rows: int) -> Rows:
        """The first ``rows`` rows, as views."""
        return Rows(self.label[:rows], self.dense[:rows], self.tokens[:, :rows], self.missing[:rows])

    def part(self, start: int, stop: int) -> Rows:
        """Rows ``[start, stop)``, as views."""
        cut = slice(start, stop)
        return Rows(self.label[cut], self.dense[cut], self.tokens[:, cut], self.missing[cut])

    @property
    def rows(self) -> int:
        """Number of rows."""
        return len(self.missing)


def room_for(rows: int) -> Rows:
    """Empty columns for at most ``rows`` rows."""
    return Rows(
        np.zeros(rows, dtype=np.uint8),
        np.empty((rows, DENSE_FEATURES), dtype=np.float32),
        np.empty((SPARSE_FEATURES, rows), dtype=np.uint32),
        np.empty(rows, dtype=np.int64),
    )


@njit(cache=True, nogil=True)
def count_rows(text: np.ndarray) -> int:
    """How many newlines there are in ``text`` uint8."""
    found = 0
    for character in text:
        found += 1 if character == NEWLINE else 0
    return found


@njit(cache=True, nogil=True)
def row_end(text: np.ndarray, at: int) -> int:
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
def parse(text: np.ndarray, at: int, row: int, labelled: bool, out: Rows) -> tuple[int, int, bool]:
    """Parse rows from byte ``at`` on into ``out`` from ``row`` on: (rows in ``out``, position, whether all were good).

    ``text`` uint8, every row ended by a newline. Stops with the position of the first bad row.
    """
    size = text.size
    while at < size:
        here = at
        absent = 0
        label: Integer = 0
        if labelled:
            label = np.int64(text[at]) - ZERO
            if label < 0 or label > 1 or text[at + 1] != TAB:
                return row, here, False
            at += 2
        for f in range(DENSE_FEATURES):
            value, after, good = _integer(text, at)
            if not good or text[after] != TAB:
                return row, here, False
            if after == at:
                absent |= 1 << f
            if value < LOGARITHMS.size:
                out.dense[row, f] = LOGARITHMS[max(value, 0)]
            else:
                out.dense[row, f] = np.float32(np.log1p(np.float64(value)))
            at = after + 1
        for f in range(SPARSE_FEATURES):
            start = at
            token: Integer = 0
            while True:
                d = np.int64(HEX[text[at]])
                if d > 15:
                    break
                token = (token << 4) | d
                at += 1
            if at - start > 8:
                return row, here, False
            if at == start:
                absent |= 1 << (DENSE_FEATURES + f)
            out.tokens[f, row] = token
            last = f == SPARSE_FEATURES - 1
            if last and text[at] == RETURN:
                at += 1
            if text[at] != (NEWLINE if last else TAB):
                return row, here, False
            at += 1
        out.label[row] = label
        out.missing[row] = absent
        row += 1
    return row, at, True


@njit(cache=True, nogil=True)
def count_missing(missing: np.ndarray, totals: np.ndarray) -> None:
    """Add to ``totals`` int64 (39,) how often each field was missing."""
    for row in range(missing.size):
        absent = missing[row]
        while absent:
            totals[_lowest_bit(absent)] += 1
            absent &= absent - 1


@njit(cache=True, nogil=True)
def _lowest_bit(value: int) -> int:
    bit = 0
    while not (value >> bit) & 1:
        bit += 1
    return bit


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
