"""Parses raw rows: label, 13 integers, 26 hexadecimal tokens, tab-separated, empty where missing.

The compiled loop parses whole blocks and stops at the first bad row; ``diagnosis`` then explains it in plain Python.
Used by both passes and by ``encode``.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from data_prep.preparation import Tally
from data_prep.raw.fields import (
    DENSE_FEATURES,
    NEWLINE,
    RETURN,
    SPARSE_FEATURES,
    TAB,
    ZERO,
    Integer,
    read_integer,
    read_token,
    short_integer,
    whole_token,
    word,
)
from data_prep.tokens import Tokens
from ssmpi.runtime.compiled.jit import njit

# most integers are small: looking up their logarithm is faster than computing it
LOGARITHMS = np.log1p(np.arange(4096, dtype=np.float64)).astype(np.float32)


class ParsedRows(NamedTuple):
    """Parsed rows, column by column. ``missing`` has bit f set when field f (13 integers, then 26 tokens) was empty."""

    label: np.ndarray  # uint8 (rows,); zeros when unlabelled
    integers: np.ndarray  # int64 (rows, 13), max(x, 0), missing 0
    tokens: np.ndarray  # uint32 (26, rows), missing 0
    missing: np.ndarray  # int64 (rows,)

    def head(self, rows: int) -> ParsedRows:
        """The first ``rows`` rows, as views."""
        return self.part(0, rows)

    def part(self, start: int, stop: int) -> ParsedRows:
        """Rows ``[start, stop)``, as views."""
        cut = slice(start, stop)
        return ParsedRows(self.label[cut], self.integers[cut], self.tokens[:, cut], self.missing[cut])

    @property
    def rows(self) -> int:
        """Number of rows."""
        return len(self.missing)

    @property
    def lists(self) -> tuple[()]:
        """No feature is a list."""
        return ()

    @property
    def split(self) -> None:
        """Splits are ranges of rows."""
        return None

    def tokens_of(self, feature: int) -> Tokens:
        """Of a sparse feature."""
        return Tokens(self.tokens[feature], self.missing, DENSE_FEATURES + feature)

    def tally(self, into: Tally) -> None:
        """Count labels, missing fields and the largest integers."""
        into.positives += tally(self, into.missing, into.largest)

    def counted(self, into: Tally) -> ParsedRows:
        """All of them."""
        return self


def room_for(rows: int) -> ParsedRows:
    """Empty columns for at most ``rows`` rows."""
    return ParsedRows(
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
def parse(text: np.ndarray, at: Integer, row: int, labelled: bool, out: ParsedRows) -> tuple[int, Integer, bool]:
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
def tally(rows: ParsedRows, missing: np.ndarray, largest: np.ndarray) -> int:
    """Add to ``missing`` int64 (39,) how often each field was missing and to ``largest`` int64 (13,) the largest
    integers; returns how many labels are 1."""
    for field in range(DENSE_FEATURES + SPARSE_FEATURES):
        times = 0
        for absent in rows.missing:
            times += (absent >> field) & 1
        missing[field] += times
    for row in range(rows.missing.size):
        for field in range(DENSE_FEATURES):
            if rows.integers[row, field] > largest[field]:  # rarely true: cheaper than a store each time
                largest[field] = rows.integers[row, field]
    positives = 0
    for label in rows.label:
        positives += label
    return positives
