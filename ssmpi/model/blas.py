"""Matrix products from compiled loops: ``sgemm`` of the BLAS in torch's library, called without the interpreter, and
loaded without importing torch, which takes seconds and 100 MB.

All matrices are row-major, contiguous float32, given as flat arrays that begin where the matrix begins.
"""

from __future__ import annotations

import ctypes
import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from ssmpi.runtime.compiled.jit import njit

TORCH = importlib.util.find_spec("torch")
LIBRARY = Path(TORCH.origin if TORCH and TORCH.origin else "torch").parent / "lib" / "libtorch_cpu.so"
AS_IT_IS, TRANSPOSED = ord("N"), ord("T")


def sgemm() -> int | None:
    """Address of BLAS's Fortran ``sgemm`` with 32-bit integers; None if torch's library does not have it."""
    try:
        return ctypes.cast(ctypes.CDLL(str(LIBRARY)).sgemm_, ctypes.c_void_p).value
    except (OSError, AttributeError):
        return None


def use_one_thread() -> None:
    """Run this thread's products on this thread alone: BLAS would start a team of threads for each. A thread-local
    setting of OpenMP and MKL.
    """
    library = ctypes.CDLL(str(LIBRARY))
    for name in ("omp_set_num_threads", "MKL_Set_Num_Threads_Local"):
        if hasattr(library, name):
            getattr(library, name)(ctypes.c_int(1))


@intrinsic
def _call(typing: Any, address: Any, chars: Any, sizes: Any, places: Any, beta: Any) -> Any:
    """``sgemm(chars, sizes m n k lda ldb ldc, 1, places a b c, beta)``: BLAS takes everything by address."""
    signature = types.void(
        types.uintp,
        types.UniTuple(types.int8, 2),
        types.UniTuple(types.int32, 6),
        types.UniTuple(types.uintp, 3),
        types.float32,
    )

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        function, letters, integers, addresses, factor = arguments
        byte = ir.IntType(8).as_pointer()

        def slot(value: Any) -> Any:
            return builder.bitcast(cgutils.alloca_once_value(builder, value), byte)

        ta, tb = (slot(value) for value in cgutils.unpack_tuple(builder, letters))
        m, n, k, lda, ldb, ldc = (slot(value) for value in cgutils.unpack_tuple(builder, integers))
        a, b, c = (builder.inttoptr(value, byte) for value in cgutils.unpack_tuple(builder, addresses))
        alpha = slot(ir.Constant(ir.FloatType(), 1.0))
        kind = ir.FunctionType(ir.VoidType(), [byte] * 13).as_pointer()
        words = [ta, tb, m, n, k, alpha, a, lda, b, ldb, slot(factor), c, ldc]
        builder.call(builder.inttoptr(function, kind), words)
        return context.get_dummy_value()

    return signature, generate


@njit(cache=True, nogil=True)
def _product(blas: int, ta: int, tb: int, m: int, n: int, k: int, a: Any, b: Any, c: Any, beta: float) -> None:
    """c (n, m) = b (n, k) a (k, m), + ``beta`` c: the column-major product of BLAS, read by rows."""
    lda = k if ta == TRANSPOSED else m
    ldb = n if tb == TRANSPOSED else k
    _call(  # type: ignore[call-arg]  # the typing context is numba's to give
        np.uintp(blas),
        (np.int8(ta), np.int8(tb)),
        (np.int32(m), np.int32(n), np.int32(k), np.int32(lda), np.int32(ldb), np.int32(m)),
        (np.uintp(a.ctypes.data), np.uintp(b.ctypes.data), np.uintp(c.ctypes.data)),
        np.float32(beta),
    )


@njit(cache=True, nogil=True)
def outputs(blas: int, values: np.ndarray, weight: np.ndarray, out: np.ndarray, rows: int, n: int, k: int) -> None:
    """out (rows, n) = values (rows, k) weight (n, k)^T."""
    _product(blas, TRANSPOSED, AS_IT_IS, n, rows, k, weight, values, out, 0.0)


@njit(cache=True, nogil=True)
def by_weight(
    blas: int, by_out: np.ndarray, values: np.ndarray, out: np.ndarray, rows: int, n: int, k: int, fresh: bool
) -> None:
    """out (n, k) = by_out (rows, n)^T values (rows, k), added unless ``fresh``."""
    _product(blas, AS_IT_IS, TRANSPOSED, k, n, rows, values, by_out, out, 0.0 if fresh else 1.0)


@njit(cache=True, nogil=True)
def by_values(
    blas: int, by_out: np.ndarray, weight: np.ndarray, out: np.ndarray, rows: int, n: int, k: int, fresh: bool
) -> None:
    """out (rows, k) = by_out (rows, n) weight (n, k), added unless ``fresh``."""
    _product(blas, AS_IT_IS, AS_IT_IS, k, rows, n, weight, by_out, out, 0.0 if fresh else 1.0)
