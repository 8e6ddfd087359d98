"""The same addresses, backed in turn by two kinds of memory: files that outlive a process, and ordinary memory.

A training loop keeps the addresses of its arrays in many places. So the addresses stay, and the memory behind them is
exchanged: ``mremap`` moves page tables within microseconds, without page faults. Both kinds start with the same values;
each is trained in its own turns.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

MREMAP_MAYMOVE, MREMAP_FIXED, MREMAP_DONTUNMAP = 1, 2, 4
PROT_NONE, MADV_HUGEPAGE = 0, 14
FAILED = ctypes.c_void_p(-1).value
LARGE = 4 << 20  # bytes from which NumPy requests huge pages

_libc = ctypes.CDLL(None, use_errno=True)
for _name in ("mmap", "mremap"):
    getattr(_libc, _name).restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_libc.mremap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p]
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


class Mapping(NamedTuple):
    """An address range of this process that maps a file; ``size`` in bytes, whole pages."""

    address: int
    size: int
    path: str

    def holds(self, array: np.ndarray) -> bool:
        """Whether an array starts in this range."""
        return self.address <= array.ctypes.data < self.address + self.size


def mappings_below(folder: Path) -> list[Mapping]:
    """This process's mappings of the files in a folder."""
    found = []
    for line in Path("/proc/self/maps").read_text(encoding="utf-8").splitlines():
        where, _, _, _, _, *path = line.split(maxsplit=5)
        if path and path[0].startswith(f"{folder}/"):
            start, stop = (int(word, 16) for word in where.split("-"))
            found.append(Mapping(start, stop - start, path[0]))
    return found


class MemorySwap:
    """Some file mappings, and for each another memory of the same size: an anonymous file for those in ``shared``,
    which several processes may map; private memory for ``own``.
    """

    def __init__(self, shared: Sequence[Mapping], own: Sequence[Mapping]) -> None:
        self._mappings = [*shared, *own]
        self._others = [*(_like(each, shared=True) for each in shared), *(_like(each, shared=False) for each in own)]

    def exchange(self) -> None:
        """Exchange the memory behind the addresses. No thread may use it meanwhile. OSError if the kernel cannot
        (before 5.13).
        """
        for place, (at, size, _) in enumerate(self._mappings):
            room = _map(size, PROT_NONE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            _move(at, size, room, MREMAP_DONTUNMAP)  # keeps the address range reserved
            _move(self._others[place], size, at, 0)
            self._others[place] = room


def _like(mapping: Mapping, *, shared: bool) -> int:
    at, size, _ = mapping
    readable = mmap.PROT_READ | mmap.PROT_WRITE
    if shared:
        file = os.memfd_create("ssmpi-bench")
        os.ftruncate(file, size)
        found = _map(size, readable, mmap.MAP_SHARED, file)
        os.close(file)
    else:
        found = _map(size, readable, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if shared or size >= LARGE:  # as ``shared_memory`` and NumPy do; a refusal does not matter
        _libc.madvise(found, size, MADV_HUGEPAGE)
    ctypes.memmove(found, at, size)
    return found


def _map(size: int, protection: int, flags: int, file: int = -1) -> int:
    found: int = _libc.mmap(None, size, protection, flags, file, 0)
    if found == FAILED:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return found


def _move(address: int, size: int, to: int, how: int) -> None:
    if _libc.mremap(address, size, size, MREMAP_MAYMOVE | MREMAP_FIXED | how, to) == FAILED:
        raise OSError(ctypes.get_errno(), f"mremap: {os.strerror(ctypes.get_errno())}")
