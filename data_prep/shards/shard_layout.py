"""Computes the shard of each row of a split, and the order of the rows in a shard.

Everything is a function of row numbers and the seed, independent of the number of ranks.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from data_prep.raw.fields import Integer
from data_prep.splits import Ranges
from ssmpi.runtime.compiled.jit import njit

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
SHARD_STREAM, ORDER_STREAM = 1, 2


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
def _random(seed: int, stream: int, row: int) -> Integer:
    """64 random bits, a function of seed, stream and row (splitmix64 as a counter-based generator)."""
    z = (np.uint64(seed) << np.uint64(2)) + np.uint64(stream)
    for counter in (np.uint64(0), np.uint64(row)):
        z = z + (counter + np.uint64(1)) * GOLDEN
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z = z ^ (z >> np.uint64(31))
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
