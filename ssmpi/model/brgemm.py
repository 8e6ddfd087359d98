"""Matrix products of bfloat16 numbers with float32 sums from compiled loops: oneDNN's kernel for a block, as torch's
library has it, called by address without the interpreter.

It is made for the processor at its first call, by size and thread (AMX tiles or AVX-512), and takes operands as
``bfloat16`` lays them out. At the sizes of these networks a product takes what torch's own takes, or less: its right
operand lies ready, and its result is not rounded. The library's BLAS has such a product too (``gemm_bf16bf16f32``),
which on processors without AMX is no faster than float32's.
"""

from __future__ import annotations

import ctypes
import os
import platform
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from ssmpi.model import bfloat16, blas, processor
from ssmpi.model.bfloat16 import EDGE, PANEL, TILE, up_to

# at::native::cpublas::brgemm(M, N, K, ld_a, ld_b, ld_c, add_C, BFloat16 *A, BFloat16 *B, float *C, is_vnni) and
# brgemm_release(is_vnni), which gives up the thread's AMX tiles.
BLOCK = "_ZN2at6native7cpublas6brgemmEllllllbPKN3c108BFloat16ES5_Pfb"
RELEASE = "_ZN2at6native7cpublas14brgemm_releaseEb"
LIMITS = ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA")  # where set, oneDNN may refuse: by an exception nobody catches
BLOCK_ROWS = 64


class Kernels(NamedTuple):
    """Addresses of the block's product and of what ends a series of them."""

    block: int
    release: int


def kernels() -> Kernels | None:
    """A fixed rule, so that bits do not depend on timing: None where the processor has no bfloat16 instructions of x86,
    where torch's library does not export the kernel, or where oneDNN is kept from using the processor's instructions.
    """
    if platform.machine() != "x86_64" or not processor.has_bfloat16() or any(name in os.environ for name in LIMITS):
        return None
    try:
        library = ctypes.CDLL(str(blas.LIBRARY))
        found = [ctypes.cast(library[name], ctypes.c_void_p).value for name in (BLOCK, RELEASE)]
    except (OSError, AttributeError):
        return None
    return Kernels(*(address or 0 for address in found))


class Operands(NamedTuple):
    """What products of bfloat16 need beside float32's: the kernels; ``copies`` uint16, the weights as right operands;
    ``room`` uint16 for the activations of one layer.
    """

    kernels: Kernels
    copies: np.ndarray
    room: np.ndarray


NONE = Kernels(0, 0)  # where all products are float32's


def operands(kernels: Kernels, layers: Sequence[tuple[int, int]], examples: int) -> Operands:
    """For layers of so many outputs and inputs and pieces of so many examples; copies lie one behind the other."""
    copies = sum(sum(copies_of(*layer)) for layer in layers)
    room = max((room_for(examples, *layer) for layer in layers), default=0)
    return Operands(kernels, aligned(copies), aligned(room))


def copies_of(outputs: int, inputs: int) -> tuple[int, int]:
    """Numbers in the copies of a weight (outputs, inputs), right operands of the forward and the backward product."""
    return up_to(inputs, EDGE) * up_to(outputs, PANEL), up_to(outputs, 2) * up_to(inputs, PANEL)


def room_for(examples: int, outputs: int, inputs: int) -> int:
    """Numbers of room that one layer needs for a piece of so many examples."""
    height = up_to(examples, EDGE)
    lines = EDGE * max(up_to(outputs, EDGE), up_to(inputs, EDGE))
    return lines + height * (up_to(inputs, PANEL) + up_to(outputs, TILE)) + height * up_to(max(outputs, inputs), EDGE)


def aligned(size: int) -> np.ndarray:
    """uint16 (size,), zeros, at the beginning of a cache line."""
    memory = np.zeros(size + EDGE, np.uint16)
    return memory[-memory.ctypes.data % (2 * EDGE) // 2 :][:size]


@intrinsic
def _block(typing: Any, address: Any, sizes: Any, strides: Any, places: Any, add: Any) -> Any:
    """C (m, n) = A (m, k) B (k, n), added to with ``add``; sizes m n k, strides and places of A, B and C."""
    three = types.UniTuple(types.int64, 3)
    signature = types.void(types.int64, three, three, three, types.int64)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        function, *triples, flag = arguments
        word = ir.IntType(64)
        sizes, strides, places = ([builder.extract_value(triple, k) for k in range(3)] for triple in triples)
        kind = ir.FunctionType(ir.VoidType(), [word] * 11).as_pointer()  # pointers and bools travel as words do
        builder.call(builder.inttoptr(function, kind), [*sizes, *strides, flag, *places, ir.Constant(word, 1)])
        return context.get_dummy_value()

    return signature, generate


@intrinsic
def _release(typing: Any, address: Any) -> Any:
    """Give up the AMX tiles of this thread: other products set them up for themselves."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        word = ir.IntType(64)
        kind = ir.FunctionType(ir.VoidType(), [word]).as_pointer()
        builder.call(builder.inttoptr(arguments[0], kind), [ir.Constant(word, 1)])
        return context.get_dummy_value()

    return types.void(types.int64), generate


@njit(cache=True, nogil=True)
def release(operands: Operands) -> None:
    """After the products of a step."""
    if operands.kernels.release:
        _release(operands.kernels.release)  # type: ignore[call-arg]


@njit(cache=True, nogil=True)
def _product(
    block: int, a: np.ndarray, b: np.ndarray, c: np.ndarray, m: int, n: int, k: int, across: int, height: int, add: bool
) -> None:
    """c float32 (m, n) = a (m, k) b (k, n): ``across`` is from row to row of a, ``height`` the rows of b's panels."""
    for column in range(0, n, PANEL):
        width = min(PANEL, n - column)
        for row in range(0, m, BLOCK_ROWS):
            _block(  # type: ignore[call-arg]  # the typing context is numba's to give
                block,
                (min(BLOCK_ROWS, m - row), width, k),
                (across, PANEL, n),
                (a[row * across :].ctypes.data, b[column * height :].ctypes.data, c[row * n + column :].ctypes.data),
                np.int64(add),
            )


@njit(cache=True, nogil=True)
def refresh(operands: Operands, place: int, weight: np.ndarray, m: int, k: int, backward: bool) -> None:
    """Round a weight float32 (m, k) as it is now into its copies, that for the ``backward`` product only if wanted."""
    copies = operands.copies[place:]
    bfloat16.panels_of_transposed(weight, m, k, operands.room, copies)
    if backward:
        bfloat16.panels(weight, m, k, up_to(m, 2), copies[up_to(k, EDGE) * up_to(m, PANEL) :])


@njit(cache=True, nogil=True)
def outputs(operands: Operands, place: int, values: np.ndarray, out: np.ndarray, n: int, m: int, k: int) -> None:
    """out (n, m) = values (n, k) weight (m, k)^T, whose copies are at ``place``; all float32."""
    across, room = up_to(k, 2), operands.room
    bfloat16.rows(values, n, k, across, room)
    _product(operands.kernels.block, room, operands.copies[place:], out, n, m, across, across, up_to(k, EDGE), False)


@njit(cache=True, nogil=True)
def by_weight(
    operands: Operands, by_out: np.ndarray, values: np.ndarray, out: np.ndarray, n: int, m: int, k: int, fresh: bool
) -> None:
    """out (m, k) = by_out (n, m)^T values (n, k), added unless ``fresh``; all float32."""
    height, room = up_to(n, EDGE), operands.room
    first = EDGE * up_to(m, EDGE)
    second = first + height * up_to(m, TILE)
    bfloat16.transposed(by_out, n, m, height, room, room[first:])
    bfloat16.panels(values, n, k, height, room[second:])
    _product(operands.kernels.block, room[first:], room[second:], out, m, k, height, height, height, not fresh)


@njit(cache=True, nogil=True)
def by_values(
    operands: Operands, place: int, by_out: np.ndarray, out: np.ndarray, n: int, m: int, k: int, fresh: bool
) -> None:
    """out (n, k) = by_out (n, m) weight (m, k), whose copies are at ``place``, added unless ``fresh``; all float32."""
    across, room = up_to(m, 2), operands.room
    copy = operands.copies[place + up_to(k, EDGE) * up_to(m, PANEL) :]
    bfloat16.rows(by_out, n, m, across, room)
    _product(operands.kernels.block, room, copy, out, n, k, across, across, across, not fresh)
