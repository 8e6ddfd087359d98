"""Software prefetch for compiled loops. Hardware prefetchers follow sequential accesses within a page; any other
access, and the first one in a new page, stalls for 0.1 to 0.2 us on a virtual machine.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from ssmpi.runtime.compiled.jit import njit

LINE, FLOATS = 64, 16  # bytes and floats of a line
ROWS_AHEAD = 12  # between the row being processed and the one being prefetched


def _asking(write: int) -> Any:
    """Code generator of a prefetch intrinsic, for reading or for writing."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        word, place = ir.IntType(32), builder.inttoptr(arguments[0], ir.IntType(8).as_pointer())
        prefetch = builder.module.declare_intrinsic(
            "llvm.prefetch", [place.type], ir.FunctionType(ir.VoidType(), [place.type, word, word, word])
        )
        builder.call(prefetch, [place, word(write), word(3), word(1)])  # to keep in all caches, data
        return context.get_dummy_value()

    return generate


@intrinsic
def ask(typing: Any, address: Any) -> Any:  # numba's interface has no types
    """Prefetch the cache line at an address. Unmapped addresses are harmless."""
    return types.void(types.uint64), _asking(0)


@intrinsic
def ask_to_write(typing: Any, address: Any) -> Any:
    """Prefetch for writing."""
    return types.void(types.uint64), _asking(1)


@njit(cache=True, nogil=True)
def ask_for_bytes(address: int, size: int) -> None:
    """Prefetch ``size`` bytes."""
    for place in range(address, address + size, LINE):
        ask(np.uint64(place))  # type: ignore[call-arg]  # numba gives the first
    ask(np.uint64(address + size - 1))  # type: ignore[call-arg]  # they may begin within a line


@njit(cache=True, nogil=True)
def ask_for_row(values: np.ndarray, rows: np.ndarray, k: int) -> None:
    """Prefetch the row of ``values`` (rows, width) that is updated ROWS_AHEAD steps after ``rows[k]``: their addresses
    are random, so the hardware cannot predict them. A slice in place of the address would be counted, which is an
    atomic operation that all loads wait for.
    """
    if k + ROWS_AHEAD < rows.shape[0]:
        size, last = values.itemsize, values.shape[1] - 1
        place = np.int64(values.ctypes.data) + values.strides[0] * rows[k + ROWS_AHEAD]
        for j in range(0, last + FLOATS, FLOATS):  # a row may begin within a line
            ask_to_write(np.uint64(place + size * min(j, last)))  # type: ignore[call-arg]  # numba gives the first


@njit(cache=True, nogil=True)
def ask_to_read_row(values: np.ndarray, rows: np.ndarray, k: int) -> None:
    """As ``ask_for_row``, of a row that is only read."""
    if k + ROWS_AHEAD < rows.shape[0]:
        size = values.itemsize * values.shape[1]
        ask_for_bytes(np.int64(values.ctypes.data) + values.strides[0] * rows[k + ROWS_AHEAD], size)
