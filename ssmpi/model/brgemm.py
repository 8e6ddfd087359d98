"""Matrix products in compiled loops by oneDNN's block kernel (brgemm), exported by torch's library and called by
address: bfloat16 with float32 accumulation, and float32.

A kernel is generated for the processor (AMX tiles, AVX-512) at its first call, by size and thread. ``bfloat16`` packs
the bfloat16 operands. At the sizes of these networks its products take 0.5 to 1 times as long as torch's, in float32 on
AMD processors 0.6 to 0.9 times as long as MKL's. The library's BLAS has a bfloat16 product too (``gemm_bf16bf16f32``),
but on processors without AMX it is no faster than float32.
"""

from __future__ import annotations

import ctypes
import os
import platform
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from ssmpi.model import blas, processor
from ssmpi.model.bfloat16 import PANEL
from ssmpi.runtime.compiled.jit import njit

# at::native::cpublas::brgemm(M, N, K, ld_a, ld_b, ld_c, add_C, A, B, float *C, is_vnni) of float and of BFloat16, and
# brgemm_release(is_vnni), which gives up the thread's AMX tiles.
SYMBOLS = (
    "_ZN2at6native7cpublas6brgemmEllllllbPKfS3_Pfb",
    "_ZN2at6native7cpublas6brgemmEllllllbPKN3c108BFloat16ES5_Pfb",
    "_ZN2at6native7cpublas14brgemm_releaseEb",
)
LIMITS = ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA")  # if set, oneDNN may throw an exception that nobody catches
HALF_ROWS, SINGLE_ROWS = 64, 128  # of a block; float32 kernels take six at a time and are slower for the remainder


class Kernels(NamedTuple):
    """Addresses of the block product in float32 and in bfloat16, and of the release function; 0 if not used."""

    single: int = 0
    half: int = 0
    release: int = 0


NONE = Kernels()


def kernels(precision: str) -> Kernels | None:
    """The kernels to use, by a fixed rule so that results do not depend on timing: for bfloat16 if the processor has
    x86's bfloat16 instructions, for float32 on AMD processors with AVX-512, where they were measured against MKL. None
    if neither applies, if torch's library does not export the functions, or if the environment limits oneDNN's
    instruction set.
    """
    single, half = processor.is_amd_with_avx512(), precision == "bf16"
    if platform.machine() != "x86_64" or any(name in os.environ for name in LIMITS):
        return None
    if not (processor.has_bfloat16() if half else single):
        return None
    try:
        library = ctypes.CDLL(str(blas.LIBRARY))
        found = [ctypes.cast(library[name], ctypes.c_void_p).value or 0 for name in SYMBOLS]
    except (OSError, AttributeError):
        return None
    return Kernels(found[0] if single else 0, found[1] if half else 0, found[2] if half else 0)


@intrinsic
def _block(typing: Any, address: Any, sizes: Any, strides: Any, places: Any, flags: Any) -> Any:
    """C (m, n) = A (m, k) B (k, n), with sizes m n k, and strides and addresses of A, B and C; flags: accumulate into
    C, rows of B are interleaved in pairs.
    """
    three = types.UniTuple(types.int64, 3)
    signature = types.void(types.int64, three, three, three, types.UniTuple(types.int64, 2))

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        function, *triples, flags = arguments
        word, add, pairs = ir.IntType(64), builder.extract_value(flags, 0), builder.extract_value(flags, 1)
        sizes, strides, places = ([builder.extract_value(triple, k) for k in range(3)] for triple in triples)
        kind = ir.FunctionType(ir.VoidType(), [word] * 11).as_pointer()  # pointers and bools are passed like words
        builder.call(builder.inttoptr(function, kind), [*sizes, *strides, add, *places, pairs])
        return context.get_dummy_value()

    return signature, generate


@intrinsic
def _release(typing: Any, address: Any) -> Any:
    """Release the AMX tiles of this thread: other products configure their own."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        word = ir.IntType(64)
        kind = ir.FunctionType(ir.VoidType(), [word]).as_pointer()
        builder.call(builder.inttoptr(arguments[0], kind), [ir.Constant(word, 1)])
        return context.get_dummy_value()

    return types.void(types.int64), generate


@njit(cache=True, nogil=True)
def release(function: int) -> None:
    """Release the AMX tiles, by ``Kernels.release``; call after the products of a step."""
    if function:
        _release(function)  # type: ignore[call-arg]  # the typing context is numba's to give


@njit(cache=True, nogil=True)
def product(
    kernel: int, pairs: bool, a: np.ndarray, b: np.ndarray, c: np.ndarray, sizes: tuple[int, int, int],
    strides: tuple[int, int, int], add: bool,
) -> None:  # fmt: skip
    """c float32 (m, n) = a (m, k) b (k, n) for sizes m n k. Strides: from row to row of a, of b, and from column to
    column of b between panels, which are PANEL columns wide.
    """
    m, n, k = sizes
    across, below, beside = strides
    for column in range(0, n, PANEL):
        width = min(PANEL, n - column)
        panel(kernel, pairs, a, b[column * beside :], c[column:], (m, width, k), (across, below, n), add)


@njit(cache=True, nogil=True)
def panel(
    kernel: int, pairs: bool, a: np.ndarray, b: np.ndarray, c: np.ndarray, sizes: tuple[int, int, int],
    strides: tuple[int, int, int], add: bool,
) -> None:  # fmt: skip
    """As ``product``, for n of at most PANEL; strides from row to row of a, of b and of c."""
    m, n, k = sizes
    across, below, apart = strides
    rows = HALF_ROWS if pairs else SINGLE_ROWS
    for row in range(0, m, rows):
        _block(  # type: ignore[call-arg]
            kernel,
            (min(rows, m - row), n, k),
            (across, below, apart),
            (a[row * across :].ctypes.data, b.ctypes.data, c[row * apart :].ctypes.data),
            (np.int64(add), np.int64(pairs)),
        )
