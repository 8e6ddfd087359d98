"""Rows in 16 bits. Kernels read and write values of a row by ``widen`` and ``narrow``, which the type of an array
compiles: float32 as it is, uint16 as bfloat16, int16 as IEEE half precision.

Values are computed in float32, and rounded stochastically when they are stored: up with a probability that is the part
which is cut off, so that the mean is exact and steps smaller than half of the last bit add up. The random bits follow
from a number that a push has (of its batch's first example), the row in its PS and the column: what repeats a push
repeats its rounding, and the next one draws anew.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types, uint32, uint64
from numba.extending import intrinsic

from ssmpi.runtime.compiled.hash_table import mix
from ssmpi.runtime.compiled.jit import njit

DTYPES: dict[str, type[np.generic]] = {"fp32": np.float32, "bf16": np.uint16, "fp16": np.int16}
NEAREST, NEAREST_KEY = -1, np.uint64(0)  # in place of a push's number, or of a row's key: round to the nearest value
GOLDEN = 0x9E3779B97F4A7C15
LARGEST, LEAST_NORMAL, INFINITE = 0x477FE000, 0x38800000, 0x7F800000  # float32 bits: 65504, 2^-14, infinity


def _widen(typing: Any, value: Any) -> Any:  # numba's interface has no types
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        if value == types.float32:
            return arguments[0]
        if value == types.uint16:
            shifted = builder.shl(builder.zext(arguments[0], ir.IntType(32)), ir.Constant(ir.IntType(32), 16))
            return builder.bitcast(shifted, ir.FloatType())
        return builder.fpext(builder.bitcast(arguments[0], ir.HalfType()), ir.FloatType())

    return types.float32(value), generate


def _narrow(typing: Any, value: Any, like: Any, key: Any, column: Any) -> Any:
    signature = like(types.float32, like, types.uint64, types.int64)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        if like == types.float32:
            return arguments[0]
        bits, rounded = builder.bitcast(arguments[0], ir.IntType(32)), {types.uint16: _bf16, types.int16: _fp16}[like]
        given = (types.uint32, types.float32, types.uint64, types.int64)
        return context.compile_internal(builder, rounded, like(*given), [bits, arguments[0], *arguments[2:]])

    return signature, generate


# The float32 value of what an array has.
widen: Callable[[Any], Any] = intrinsic(_widen)  # type: ignore[assignment]
# A float32 value in the type of ``like``, rounded by the ``row_key`` and the column.
narrow: Callable[[Any, Any, Any, int], Any] = intrinsic(_narrow)  # type: ignore[assignment]


@njit(cache=True, nogil=True)
def row_key(number: int, row: int) -> Any:
    """What the random bits of a row follow from, in the push of this number."""
    if number < 0:
        return NEAREST_KEY
    return mix(mix(uint64(number) + uint64(GOLDEN)) + uint64(row) * uint64(GOLDEN)) | uint64(1)


@njit(cache=True, nogil=True)
def second_key(key: Any) -> Any:
    """Another one, for a row that is stored twice in a push."""
    return mix(key) | uint64(1) if key else NEAREST_KEY


@njit(cache=True, nogil=True)
def _random(key: Any, column: int) -> Any:
    """32 random bits (MurmurHash3's finalizer), or the middle of their range if the key is NEAREST_KEY."""
    bits = uint32((key >> uint64(32)) + uint64(column) * uint64(0x9E3779B9))
    bits = uint32((bits ^ (bits >> uint32(16))) * uint32(0x85EBCA6B))
    bits = uint32((bits ^ (bits >> uint32(13))) * uint32(0xC2B2AE35))
    bits = uint32(bits ^ (bits >> uint32(16)))
    return bits if key else uint32(0x7FFFFFFF)  # and 1 more rounds a tie up


def _bf16(bits: Any, value: Any, key: Any, column: Any) -> Any:
    """Compiled for uint16: a float32 value with these ``bits``; NaN stays, a value beyond the range is infinite."""
    tie = (uint64(bits) >> uint64(16)) & uint64(key == NEAREST_KEY)  # to even
    rounded = uint64(bits) + (uint64(_random(key, column)) >> uint64(16)) + tie
    return np.uint16(rounded >> uint64(16)) if value == value else np.uint16(0x7FC0)


def _fp16(bits: Any, value: Any, key: Any, column: Any) -> Any:
    """Compiled for int16: infinity and NaN stay, a value beyond the range becomes the last one, +-65504."""
    random, magnitude = _random(key, column), uint32(bits & uint32(0x7FFFFFFF))
    tie = (uint64(bits) >> uint64(13)) & uint64(key == NEAREST_KEY)
    half = uint32((uint64(magnitude) + (uint64(random) >> uint64(19)) + tie - uint64(112 << 23)) >> uint64(13))
    if magnitude < uint32(LEAST_NORMAL):  # fixed point, in units of 2^-24
        units, share = abs(value) * np.float32(16777216.0), np.float32(random >> uint32(8)) * np.float32(2.0**-24)
        half = uint32(np.int32(units + share if key else np.rint(units)))
    if magnitude >= uint32(LARGEST):
        half = uint32(0x7BFF)
    if magnitude >= uint32(INFINITE):
        half = uint32(0x7C00) if value == value else uint32(0x7E00)
    return np.int16(np.uint16(half | ((bits >> uint32(16)) & uint32(0x8000))))


@njit(cache=True, nogil=True)
def convert(values: np.ndarray, out: np.ndarray) -> None:
    """Write values (n,) of one type to ``out`` of another, rounded to the nearest."""
    for i in range(values.size):
        out[i] = narrow(widen(values[i]), out[i], NEAREST_KEY, i)


def converted(values: np.ndarray, dtype: Any) -> np.ndarray:
    """Values of one of the types in another, rounded to the nearest; the same array if it has that type, or none of
    them.
    """
    if values.dtype == dtype or values.dtype.type not in DTYPES.values():
        return values
    out = np.empty(values.shape, dtype)
    convert(np.ascontiguousarray(values).reshape(-1), out.reshape(-1))
    return out
