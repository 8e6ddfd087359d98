"""Which part of a vector is whose: fragments, and servers' or owners' shards of them."""

from __future__ import annotations


def cut(size: int, parts: int) -> list[slice]:
    """``size`` floats in contiguous parts, as equal as can be."""
    edges = [size * p // parts for p in range(parts + 1)]
    return [slice(a, b) for a, b in zip(edges, edges[1:], strict=False)]


def shards(size: int, fragments: int, servers: int) -> list[list[slice]]:
    """Each server's shard of each fragment, as a part of a vector of so many floats."""
    parts = cut(size, fragments)
    return [
        [slice(part.start + shard.start, part.start + shard.stop) for shard in cut(part.stop - part.start, servers)]
        for part in parts
    ]
