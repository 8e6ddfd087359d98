"""Open-addressing tables from 64-bit keys to a word, compiled and run without the GIL.

``slots`` int64 (2 * a power of two,) has key and word of each slot side by side, so that a probe reads one cache line.
Key 0 marks a free slot, and at most half of the slots are taken. Nothing is removed. One thread may insert while others
look up.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import uint64

from ssmpi.runtime.compiled import atomic
from ssmpi.runtime.compiled.cache_lines import ask
from ssmpi.runtime.compiled.jit import njit

NOT_FOUND = -1


@njit(cache=True, nogil=True)
def mix(x: Any) -> Any:
    """SplitMix64's finalizer (Steele, Lea, Flood, OOPSLA 2014)."""
    x = (x ^ (x >> uint64(30))) * uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> uint64(27))) * uint64(0x94D049BB133111EB)
    return x ^ (x >> uint64(31))


def slots_for(keys: int) -> int:
    """Slots for so many keys: a power of two, at most half of them taken."""
    return 1 << max(4, (2 * keys - 1).bit_length())


@njit(cache=True, nogil=True)
def ask_for_slot(slots: np.ndarray, key: int) -> None:
    """Prefetch the slot where the search for ``key`` begins."""
    slot = mix(uint64(key)) & uint64(slots.size // 2 - 1)
    ask(uint64(slots.ctypes.data) + uint64(16) * slot)  # type: ignore[call-arg]  # numba gives the first


@njit(cache=True, nogil=True)
def find(slots: np.ndarray, key: int) -> int:
    """The word of ``key``, or NOT_FOUND. May run while another thread inserts."""
    mask, base = slots.size // 2 - 1, slots.ctypes.data
    slot = np.int64(mix(uint64(key)) & uint64(mask))
    while True:
        there: int = atomic.load_word(base + 16 * slot)  # type: ignore[call-arg]  # numba gives the first
        if there == key:
            return slots[2 * slot + 1]
        if there == 0:
            return NOT_FOUND
        slot = (slot + 1) & mask


@njit(cache=True, nogil=True)
def slot_of(slots: np.ndarray, key: int) -> Any:
    """The slot of ``key``, or the free one where it belongs. Only for the thread that inserts."""
    mask = slots.size // 2 - 1
    slot = np.int64(mix(uint64(key)) & uint64(mask))
    while slots[2 * slot] != 0 and slots[2 * slot] != key:
        slot = (slot + 1) & mask
    return slot


@njit(cache=True, nogil=True)
def insert(slots: np.ndarray, key: int, word: int) -> None:
    """Add a key that is not there: its word before the key, so that others see whole entries."""
    slot = slot_of(slots, key)
    slots[2 * slot + 1] = word
    atomic.store_word(slots.ctypes.data + 16 * slot, key)  # type: ignore[call-arg]  # numba gives the first
