"""Huge pages for memory that is accessed at random. A row in memory of 4 KB pages costs a walk through the page tables,
because the processor keeps the places of a few thousand pages only: pull and push of tables beyond the cache take 1.6
times as long (``SPEED.md``).

Memory that others map lies in huge pages only if the system offers them for shared memory, which by default it does not
(``shmem_enabled``). Collapsing pages that are there works regardless, on Linux 6.1 and later.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np

MADV_COLLAPSE = 25  # as Linux has it; the module mmap does not name it
_libc = ctypes.CDLL(None, use_errno=True)
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


@cache
def huge_page() -> int:
    """Bytes of one; 0 if the system has none."""
    with contextlib.suppress(OSError, ValueError):
        return int(Path("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size").read_text(encoding="ascii"))
    return 0


def in_huge_pages(memory: mmap.mmap) -> mmap.mmap:
    """The same memory, in huge pages if the system grants them."""
    with contextlib.suppress(OSError):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


def collapse(memory: np.ndarray, there: Sequence[slice]) -> None:
    """Let the bytes that are ``there`` of mapped memory, uint8, lie in huge pages as far as they fill some. Where the
    system cannot do that they stay as they are.
    """
    if not (huge := huge_page()):
        return
    begin = memory.ctypes.data
    for some in there:
        start, stop = -(-(begin + some.start) // huge) * huge, (begin + some.stop) // huge * huge
        if start < stop:
            _libc.madvise(start, stop - start, MADV_COLLAPSE)
