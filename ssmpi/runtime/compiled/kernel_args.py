"""Long-lived arrays as one array of addresses for compiled code. Unboxing an array argument costs each call 0.1 us of
the GIL, ten times that with cold caches, and more for tuples of arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numba import carray, types
from numba.extending import intrinsic

from ssmpi.runtime.compiled.jit import njit


class KernelArgs:
    """``words`` int64: the ``numbers``, then address and size of each of the ``arrays``, which it keeps alive. The
    arrays are contiguous; compiled code sees them flat.
    """

    def __init__(self, numbers: Sequence[int], arrays: Sequence[np.ndarray]) -> None:
        assert all(array.flags.c_contiguous for array in arrays)
        self._arrays = tuple(arrays)
        places = (word for array in arrays for word in (array.ctypes.data, array.size))
        self.words = np.array([*numbers, *places], np.int64)


@intrinsic
def pointer(typing: Any, address: Any) -> Any:  # numba's interface has no types
    """A pointer to an address, for ``carray``."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(types.voidptr))

    return types.voidptr(types.int64), generate


@njit(cache=True, nogil=True)
def numbers_at(address: int, count: int, kind: type[np.generic]) -> np.ndarray:
    """So many numbers of one kind from an address on."""
    return carray(pointer(address), (count,), kind)  # type: ignore[call-arg]  # numba gives the first


@njit(cache=True, nogil=True)
def array_at(words: np.ndarray, place: int, kind: type[np.generic]) -> np.ndarray:
    """The flat array of one kind of numbers with address and size at a ``place`` of the words of ``KernelArgs``."""
    return numbers_at(words[place], words[place + 1], kind)
