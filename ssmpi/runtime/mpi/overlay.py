"""Memory at the places of a mapped file: of rows on disk (``embedding.storage``) those that are used most lie there,
which no disk backs, so that the kernel never has to write or to free them.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

MAP_FIXED = 0x10  # as Linux has it on x86-64 and arm64; the module mmap does not name it
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_int64]


class Overlay(NamedTuple):
    """``size`` bytes from ``start`` of an array lie at an ``offset`` of another open ``file``; all are whole pages."""

    start: int
    size: int
    file: int
    offset: int


def overlays(hot: Sequence[slice], file: int, offset: int) -> list[Overlay]:
    """Those of some bytes of an array, one after the other in an open file."""
    found = []
    for some in hot:
        found.append(Overlay(some.start, some.stop - some.start, file, offset))
        offset += some.stop - some.start
    return found


def size_of(hot: Sequence[slice]) -> int:
    """How many bytes of an array these are."""
    return sum(some.stop - some.start for some in hot)


def within(hot: Sequence[slice], some: slice) -> list[slice]:
    """Where ``some`` bytes of an array lie in the file that has its ``hot`` ones, one after the other."""
    found, offset = [], 0
    for each in hot:
        start, stop = max(each.start, some.start), min(each.stop, some.stop)
        if start < stop:
            found.append(slice(offset + start - each.start, offset + stop - each.start))
        offset += each.stop - each.start
    return found


def map_over(memory: np.ndarray, over: Sequence[Overlay]) -> None:
    """Map other files at their places in mapped ``memory``, uint8. They stay mapped until it ends."""
    address = memory.ctypes.data
    for each in over:
        place, access = address + each.start, mmap.PROT_READ | mmap.PROT_WRITE
        if _libc.mmap(place, each.size, access, mmap.MAP_SHARED | MAP_FIXED, each.file, each.offset) != place:
            raise OSError(ctypes.get_errno(), f"cannot map memory over a file: {os.strerror(ctypes.get_errno())}")
