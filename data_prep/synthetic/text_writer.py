"""Turns drawn rows into text: raw Criteo-format text, the inverse of ``parser``, or a table whose columns are lists.
Used by ``synthesize``.

Lists are those of MLPerf, which makes multi-hot data for DLRM DCN v2 of Criteo's one-hot data so (``multi_hot.py`` of
facebookresearch/dlrm, distribution ``uniform``): each token is looked up in a table of lists. A list begins with the
token; the others are drawn once for it, uniformly from those of its feature. So lists carry what tokens carried, and
labels and the teacher's scores stay as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from data_prep.raw.parser import DENSE_FEATURES, DENSE_NAMES, MINUS, NEWLINE, SPARSE_FEATURES, SPARSE_NAMES, TAB, ZERO
from data_prep.synthetic.draws import MISSING_INTEGER, mix
from data_prep.synthetic.teacher import DrawnRows
from ssmpi.runtime.compiled.jit import njit

HEX_DIGITS = np.frombuffer(b"0123456789abcdef", np.uint8)
SCHEMA_NAME = "schema.toml"
SHARES = "0.8,0.1,0.1"  # of train, validation and test in the schema
LABEL = "label"
MOST = 1_000  # tokens of a list: a row of text stays far below 1 MiB
BAR = ord("|")


class MultiHot(NamedTuple):
    """``counts`` int64 (26,): tokens of each feature's list; ``cardinality`` int64 (26,): tokens of the feature."""

    counts: np.ndarray
    cardinality: np.ndarray


ONE_HOT = MultiHot(np.ones(SPARSE_FEATURES, np.int64), np.ones(SPARSE_FEATURES, np.int64))


@njit(cache=True, nogil=True)
def other_token(masks: np.ndarray, cardinality: int, token: int, k: int) -> int:
    """The ``k``-th other token in the list of ``token``, by rank; of the same generation, so that they go together.
    ``masks`` uint32 (2,): those of the feature.
    """
    key = (np.uint64(masks[0]) << np.uint64(32)) | np.uint64(masks[1])
    draw = mix(mix(key + np.uint64(token)) + np.uint64(k) * np.uint64(0x9E3779B97F4A7C15))
    rank = np.int64(((draw >> np.uint64(32)) * np.uint64(cardinality)) >> np.uint64(32))
    return int(rank + token // cardinality * cardinality)


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


def header(labelled: bool) -> bytes:
    """The first line of a file."""
    return "\t".join((LABEL,) * labelled + DENSE_NAMES + SPARSE_NAMES).encode() + b"\n"


def schema(counts: Sequence[int]) -> str:
    """What ``ssmpi-prepare table`` reads the files by: features with one token have ids, the others lists of them."""
    of = dict(zip(SPARSE_NAMES, counts, strict=True))
    lines = [f'label = "{LABEL}"', "", "[table]", 'separator = "\\t"', "", "[dense]"]
    lines += [f'{name} = "log1p"' for name in DENSE_NAMES]
    lines += ["", "[categorical]", *(f'{name} = "string"' for name, count in of.items() if count == 1)]
    lines += ["", "[list]", *(f"{name} = {{ longest = {count} }}" for name, count in of.items() if count > 1)]
    lines += ["", "[split]", 'by = "rows"', f"shares = [{SHARES.replace(',', ', ')}]"]
    return "\n".join(lines) + "\n"
