"""Averages the replicas of one host in one pass, block by block, so that a block stays in the cache between reading it
and writing it back. Sums are taken in the order of the replicas, as with messages.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray, types
from numba.extending import intrinsic

from ssmpi.runtime.compiled.cache_lines import ask_to_write
from ssmpi.runtime.compiled.jit import njit

BLOCK = 256  # floats: larger blocks of several page-aligned vectors evict each other from the first-level cache
LINE = 16  # floats of a cache line
AHEAD = 2 * BLOCK  # floats between processing and prefetching
compiled = njit(cache=True, nogil=True, error_model="numpy")  # otherwise the check for a zero divisor slows the loop


@intrinsic
def _floats(typing: Any, address: Any) -> Any:
    """A pointer to float32 at an address."""
    pointer = types.CPointer(types.float32)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(pointer))

    return pointer(types.uint64), generate


class Replicas:
    """Live vectors, float32 (parameters,) each, for compiled code, with a cache-aligned buffer for ``blocks``, one of
    each and one of their mean.
    """

    def __init__(self, vectors: list[np.ndarray]) -> None:
        self._vectors = vectors  # keeps them alive while their addresses are used
        self.addresses = np.array([vector.ctypes.data for vector in vectors], np.uint64)
        size = (len(vectors) + 1) * BLOCK
        blocks = np.empty(size + LINE, np.float32)
        first = -(blocks.ctypes.data // blocks.itemsize) % LINE
        self.blocks = blocks[first : first + size].reshape(-1, BLOCK)


@compiled
def take_mean(addresses: np.ndarray, counts: np.ndarray, start: int, size: int, blocks: np.ndarray) -> None:
    """Copy ``size`` floats of each replica from ``start`` on into the first rows of ``blocks``, and their mean into its
    last one, over the replicas that count, bool (replicas,), at least one.

    The replicas' cache lines are in their workers' caches. Reading and then writing a line would transfer it twice, so
    lines are prefetched for writing, two blocks ahead.
    """
    for k in range(addresses.shape[0]):
        for i in range(start + AHEAD, start + AHEAD + size, LINE):
            ask_to_write(addresses[k] + np.uint64(4 * i))  # type: ignore[call-arg]
    mean, number = blocks[-1], np.float32(0.0)
    mean[:size] = np.float32(0.0)
    for k in range(addresses.shape[0]):
        live, snapshot = carray(_floats(addresses[k] + np.uint64(4 * start)), size), blocks[k]  # type: ignore[call-arg]
        for i in range(size):
            snapshot[i] = live[i]
        if counts[k]:
            number += np.float32(1.0)
            for i in range(size):
                mean[i] += snapshot[i]
    for i in range(size):
        mean[i] /= number


@compiled
def move(
    addresses: np.ndarray, start: int, blocks: np.ndarray, reference: np.ndarray, alpha: float, difference: bool
) -> None:
    """Move that part of every replica towards its ``reference``, as ``merge_difference`` or ``merge_interpolate``."""
    a, size = np.float32(alpha), reference.shape[0]
    for k in range(addresses.shape[0]):
        live, snapshot = carray(_floats(addresses[k] + np.uint64(4 * start)), size), blocks[k]  # type: ignore[call-arg]
        if difference:
            for i in range(size):
                live[i] += a * (reference[i] - snapshot[i])
        else:
            for i in range(size):
                live[i] = (np.float32(1.0) - a) * live[i] + a * reference[i]


@compiled
def average(
    addresses: np.ndarray, counts: np.ndarray, part: tuple[int, int], blocks: np.ndarray, alpha: float, difference: bool
) -> None:
    """Move a ``part`` (start, stop) of every replica towards the mean of those that count."""
    block = blocks.shape[1]
    for start in range(part[0], part[1], block):
        size = min(block, part[1] - start)
        take_mean(addresses, counts, start, size, blocks)
        move(addresses, start, blocks, blocks[-1, :size], alpha, difference)
