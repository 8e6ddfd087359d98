"""Long-lived arrays as one array of addresses for compiled code. Unboxing an array argument costs each call 0.1 us of
the GIL, ten times that with cold caches, and more for tuples of arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic
from numba.np.arrayobj import make_array, populate_array


class KernelArgs:
    """``words`` int64: the ``numbers``, then address and size of each of the ``arrays``, which it keeps alive. The
    arrays are contiguous; compiled code sees them flat.
    """

    def __init__(self, numbers: Sequence[int], arrays: Sequence[np.ndarray]) -> None:
        assert all(array.flags.c_contiguous for array in arrays)
        self._arrays = tuple(arrays)
        places = (word for array in arrays for word in (array.ctypes.data, array.size))
        self.words = np.array([*numbers, *places], np.int64)


def _numbers_at(typing: Any, address: Any, count: Any, kind: Any) -> Any:  # numba's interface has no types
    array = types.Array(kind.dtype, 1, "C")

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return _array(context, builder, array, *arguments[:2])

    return array(types.int64, types.int64, kind), generate


def _array_at(typing: Any, words: Any, place: Any, kind: Any) -> Any:
    array = types.Array(getattr(kind, "dtype", kind), 1, "C")

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        first = builder.gep(make_array(words)(context, builder, arguments[0]).data, [arguments[1]])
        address, size = (builder.load(builder.gep(first, [ir.Constant(ir.IntType(64), k)])) for k in range(2))
        return _array(context, builder, array, address, size)

    return array(words, types.int64, kind), generate


def _array(context: Any, builder: Any, kind: Any, address: Any, size: Any) -> Any:
    """Code for an array; a compiled function in its place would be compiled for each ``place``, which is a constant."""
    made = make_array(kind)(context, builder)
    step = ir.Constant(ir.IntType(64), context.get_abi_sizeof(context.get_data_type(kind.dtype)))
    data = builder.inttoptr(address, made.data.type)
    populate_array(made, data=data, shape=[size], strides=[step], itemsize=step, meminfo=None)
    return made._getvalue()


# So many numbers of one kind from an address on.
numbers_at: Callable[[int, int, type[np.generic]], np.ndarray] = intrinsic(_numbers_at)  # type: ignore[assignment]
# The flat array of one kind of numbers, or of that of a number, with address and size at a place of the words of
# ``KernelArgs``.
array_at: Callable[[np.ndarray, int, Any], np.ndarray] = intrinsic(_array_at)  # type: ignore[assignment]
