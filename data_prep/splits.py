"""Which rows a split has, which of its shards each row is in, and the order of the rows in a shard.

Rows are numbered over all sources in order; ranges are half-open. Everything is a function of row numbers and the seed,
independent of the number of ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ssmpi.data.schema import SPLITS
from ssmpi.runtime.compiled.hash_table import mix
from ssmpi.runtime.compiled.jit import njit
from ssmpi.runtime.errors import UserError

Ranges = dict[str, tuple[int, int]]

KAGGLE_DAYS = 7
GOLDEN = np.uint64(0x9E3779B97F4A7C15)
SHARD_STREAM, ORDER_STREAM = 1, 2


def parse_fractions(text: str) -> tuple[float, ...]:
    """``0.8,0.1,0.1`` as numbers for train, validation, test; UserError unless they are 1 to 3 and add up to 1."""
    try:
        fractions = tuple(float(part) for part in text.split(","))
    except ValueError:
        raise UserError(
            f"--split {text!r}: not kaggle, days, none or fractions; write for example --split 0.8,0.1,0.1"
        ) from None
    if not 1 <= len(fractions) <= len(SPLITS) or not all(0 <= x <= 1 for x in fractions):
        raise UserError(f"--split {text}: give one to three fractions between 0 and 1 (train,validation,test)")
    if abs(sum(fractions) - 1) > 1e-9:
        raise UserError(f"--split {text}: the fractions add up to {sum(fractions):g}, not 1")
    return fractions


def split_rows(kind: str, rows_per_source: Sequence[int], name: str = "train") -> Ranges:
    """The row ranges of the splits, empty ones left out.

    ``kaggle``: seven equal ranges, the first ones taking the remainder; six train, the first half of the last is test,
    the second validation (the arithmetic of facebookresearch/dlrm). ``days``: the same halves of the last file.
    ``none``: all rows in split ``name``. Otherwise fractions, in the order train, validation, test.
    """
    total = sum(rows_per_source)
    if kind == "none":
        ranges = {name: (0, total)}
    elif kind == "kaggle":
        ranges = _halve_last(total - total // KAGGLE_DAYS, total)
    elif kind == "days":
        ranges = _halve_last(total - rows_per_source[-1], total)
    else:
        fractions = parse_fractions(kind)
        cuts = [round(total * sum(fractions[:i])) for i in range(len(fractions))] + [total]
        ranges = {split: (cuts[i], cuts[i + 1]) for i, split in enumerate(SPLITS[: len(fractions)])}
    return {split: ranges[split] for split in SPLITS if split in ranges and ranges[split][0] < ranges[split][1]}


def _halve_last(start: int, total: int) -> Ranges:
    middle = start + (total - start + 1) // 2
    return {"train": (0, start), "test": (start, middle), "validation": (middle, total)}


@dataclass(frozen=True)
class PlannedShard:
    """A shard to write: ``index`` counts over all splits, ``rows`` is the source row range it draws from."""

    index: int
    split: str
    shuffled: bool
    rows: tuple[int, int]


@dataclass(frozen=True)
class ShardLayout:
    """The shard of every row: random for shuffled splits, in order for the others."""

    ranges: Ranges
    shard_rows: int
    seed: int
    shuffle: bool

    def targets(self) -> list[PlannedShard]:
        """All shards, split by split. A shuffled one may be empty if there are few rows."""
        targets: list[PlannedShard] = []
        for split, (start, stop) in self.ranges.items():
            shuffled = self.shuffle and split == "train"
            for at in range(start, stop, self.shard_rows):
                rows = (start, stop) if shuffled else (at, min(at + self.shard_rows, stop))
                targets.append(PlannedShard(len(targets), split, shuffled, rows))
        return targets

    def shard_of(self, start: int, stop: int) -> np.ndarray:
        """The shard index int32 (rows,) of rows ``[start, stop)``."""
        out = np.empty(stop - start, dtype=np.int32)
        before = 0
        for split, (low, high) in self.ranges.items():
            shards = -(-(high - low) // self.shard_rows)
            first, last = max(start, low), min(stop, high)
            if first < last:
                part = out[first - start : last - start]
                if self.shuffle and split == "train":
                    draw_shards(self.seed, first, shards, part)
                else:
                    part[:] = (np.arange(first, last) - low) // self.shard_rows
                part += before
            before += shards
        return out


@njit(cache=True, nogil=True)
def _random(seed: int, stream: int, row: int) -> np.uint64:
    """64 random bits, a function of seed, stream and row (splitmix64 as a counter-based generator)."""
    z = (np.uint64(seed) << np.uint64(2)) + np.uint64(stream)
    for counter in (np.uint64(0), np.uint64(row)):
        z = mix(z + (counter + np.uint64(1)) * GOLDEN)
    return z


@njit(cache=True, nogil=True)
def draw_shards(seed: int, first: int, shards: int, out: np.ndarray) -> None:
    """A random shard in ``[0, shards)`` for each row from ``first`` on: the scatter of the bucket shuffle."""
    for i in range(out.size):
        high = _random(seed, SHARD_STREAM, first + i) >> np.uint64(32)
        out[i] = np.int32((high * np.uint64(shards)) >> np.uint64(32))


@njit(cache=True, nogil=True)
def permutation(seed: int, shard: int, rows: int) -> np.ndarray:
    """The order uint32 (rows,) of a shard's rows, drawn uniformly (Fisher and Yates, from the end)."""
    order = np.arange(rows).astype(np.uint32)
    for i in range(rows - 1, 0, -1):
        draw = _random(seed, ORDER_STREAM, (shard << 32) + i)
        # the upper 64 bits of draw * (i + 1): an index in [0, i]
        low, bound = draw & np.uint64(0xFFFFFFFF), np.uint64(i + 1)
        j = ((draw >> np.uint64(32)) * bound + ((low * bound) >> np.uint64(32))) >> np.uint64(32)
        order[i], order[j] = order[j], order[i]
    return order
