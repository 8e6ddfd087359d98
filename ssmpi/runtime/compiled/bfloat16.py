"""bfloat16: the upper half of a float32 number, stored as uint16."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from ssmpi.runtime.compiled.jit import njit


@njit(cache=True, nogil=True, error_model="numpy")
def to_bf16(values: np.ndarray, halves: np.ndarray) -> None:
    """Round float32, seen as uint32 (n,), to the nearest bfloat16, ties to even; uint16 (n,). NaN stays."""
    for i in range(values.shape[0]):
        bits = values[i]
        nearest = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
        nan = (bits & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
        halves[i] = np.uint16((bits | np.uint32(0x400000) if nan else nearest) >> np.uint32(16))


@njit(cache=True, nogil=True, error_model="numpy")
def from_bf16(halves: np.ndarray, values: np.ndarray) -> None:
    """Widen bfloat16, seen as uint16 (n,), to float32, seen as uint32 (n,)."""
    for i in range(halves.shape[0]):
        values[i] = np.uint32(halves[i]) << np.uint32(16)


@njit(cache=True, nogil=True)
def add_bf16(halves: np.ndarray, values: np.ndarray) -> None:
    """Add bfloat16, seen as uint16 (n,), to float32 (n,)."""
    for i in range(halves.shape[0]):
        values[i] += _number(np.uint32(halves[i]) << np.uint32(16))  # type: ignore[call-arg]  # numba gives the first


@intrinsic
def _number(typing: Any, bits: Any) -> Any:  # numba's interface has no types
    """The float32 number with these bits."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(builder.trunc(arguments[0], ir.IntType(32)), ir.FloatType())

    return types.float32(types.uint64), generate
