"""How a vector is split: into fragments, and those into shards of servers or owners."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise


def cut(size: int, parts: int) -> list[slice]:
    """Split ``size`` floats into contiguous parts of nearly equal size."""
    edges = [size * p // parts for p in range(parts + 1)]
    return [slice(a, b) for a, b in zip(edges, edges[1:], strict=False)]


def shards(size: int, fragments: int, servers: int) -> list[list[slice]]:
    """Each server's shard of each fragment, as slices of a vector of ``size`` floats."""
    parts = cut(size, fragments)
    return [
        [slice(part.start + shard.start, part.start + shard.stop) for shard in cut(part.stop - part.start, servers)]
        for part in parts
    ]


def packed(shards: Sequence[Sequence[slice]]) -> list[list[slice]]:
    """Shards of the same sizes in a vector that holds nothing else, one after the other."""
    ends = accumulate((part.stop - part.start for parts in shards for part in parts), initial=0)
    places = (slice(start, stop) for start, stop in pairwise(ends))
    return [[next(places) for _ in parts] for parts in shards]
