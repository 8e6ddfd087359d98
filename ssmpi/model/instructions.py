"""Executes the instructions of a program, forward and backward, on examples whose values lie in flat buffers.

Functions that only dispatch to others are inlined before type inference (here, in ``gemm``, ``field_kernels`` and
``executor``). A float32 step then compiles in 28 CPU seconds instead of 39 (empty cache, one processor), probably
because numba links callees into their callers, where LLVM optimizes them once more. Messages added 1 to 4.
"""

from __future__ import annotations

import numpy as np

from ssmpi.model import field_kernels, gemm, kernels, messages, top_k_kernels
from ssmpi.model.gemm import Gemm
from ssmpi.model.messages import Mail
from ssmpi.model.program import (
    ADD_A,
    ADD_B,
    ADD_C,
    BIAS,
    BY_A,
    BY_B,
    BY_C,
    COPY,
    DETAIL,
    FLAGS,
    GATE,
    HALF,
    INPUTS,
    INTERACTION,
    KIND,
    LINEAR,
    MACHINE,
    OUT,
    OUTPUTS,
    RELU,
    ROWS_PLACE,
    SIGMOID,
    SLICE,
    THRESHOLD,
    TOP_K,
    WEIGHT,
    A,
    B,
    C,
)
from ssmpi.runtime.compiled.jit import njit


@njit(cache=True, nogil=True, inline="always")
def run(
    by: Gemm, mail: Mail, table: np.ndarray, backward: bool, n: int, fresh: bool, weights: np.ndarray,
    gradients: np.ndarray, values: np.ndarray, by_values: np.ndarray, rows: np.ndarray, by_rows: np.ndarray,
    estimates: np.ndarray, defer: bool = False,
) -> None:  # fmt: skip
    """Execute all instructions on ``n`` examples, or, if ``backward``, their gradients in reverse order.

    All arrays are flat. Parameter gradients are added to ``gradients``, or overwrite it if ``fresh``; ``defer`` skips
    those that are ``deferrable``.
    """
    if backward:
        for step in range(len(table) - 1, -1, -1):
            _backward(by, mail, table[step], n, fresh, weights, gradients, values, by_values, rows, by_rows, defer)
    else:
        for step in range(len(table)):
            _forward(by, mail, table[step], n, weights, values, rows, estimates)


@njit(cache=True, nogil=True, inline="always")
def deferrable(by: Gemm, row: np.ndarray) -> bool:
    """Whether an instruction's weight gradient can be computed later, some rows at a time: for float32 products by
    oneDNN's kernel, whose operands remain in the buffers until the next step.
    """
    return row[KIND] == LINEAR and row[FLAGS] & HALF == 0 and by.operands.kernels.single != 0 and row[A] != ROWS_PLACE


@njit(cache=True, nogil=True, inline="always")
def _place(place: int, n: int, values: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """The buffer from the start of a value of ``n`` examples."""
    return rows if place == ROWS_PLACE else values[n * place :]


@njit(cache=True, nogil=True, inline="always")
def _forward(
    by: Gemm, mail: Mail, row: np.ndarray, n: int, weights: np.ndarray, values: np.ndarray, rows: np.ndarray,
    estimates: np.ndarray,
) -> None:  # fmt: skip
    kind, k, m = row[KIND], row[INPUTS], row[OUTPUTS]
    a, flat = _place(row[A], n, values, rows), values[n * row[OUT] : n * (row[OUT] + m)]
    out = flat.reshape(n, m)
    if kind == LINEAR:
        half, bias = row[FLAGS] & HALF != 0, weights[row[BIAS] : row[BIAS] + m] if row[BIAS] >= 0 else weights[:0]
        relu, matrix = row[FLAGS] & RELU != 0, weights[row[WEIGHT] :]
        gemm.outputs(by, half, row[DETAIL], a, matrix, bias, relu, flat, n, m, k)
        if row[FLAGS] & SIGMOID:
            kernels.sigmoid(flat)
    elif kind == INTERACTION:
        vectors = _place(row[B], n, values, rows)[: n * row[DETAIL] * k]
        kernels.interact(a[: n * k].reshape(n, k), vectors.reshape(n, row[DETAIL], k), out)
    elif kind == COPY:
        kernels.hand_on(a, n, k, k, flat[row[DETAIL] :], m, False)
    elif kind == SLICE:
        kernels.hand_on(a[row[DETAIL] :], n, m, k, flat, m, False)
    elif kind in (TOP_K, THRESHOLD):
        top_k_kernels.forward(row, n, a[: n * k], values, flat, estimates)
    elif kind == GATE:
        kernels.gate(a, _place(row[B], n, values, rows), _place(row[C], n, values, rows), flat)
    elif kind > MACHINE:
        messages.forward(mail, row, n, a, values, flat)
    elif kind > GATE:
        field_kernels.forward(row, n, a[: n * k], weights, flat)


@njit(cache=True, nogil=True, inline="always")
def _backward(
    by: Gemm, mail: Mail, row: np.ndarray, n: int, fresh: bool, weights: np.ndarray, gradients: np.ndarray,
    values: np.ndarray, by_values: np.ndarray, rows: np.ndarray, by_rows: np.ndarray, defer: bool,
) -> None:  # fmt: skip
    """The backward pass of one instruction: from the gradient of its output to those of its inputs and parameters."""
    kind, k, m, flags = row[KIND], row[INPUTS], row[OUTPUTS], row[FLAGS]
    place = n * row[OUT]
    a, by_a = _place(row[A], n, values, rows), _place(row[A], n, by_values, by_rows)
    flat = by_values[place : place + n * m]
    by_out = flat.reshape(n, m)
    if kind == LINEAR:
        bias = row[BIAS]
        by_bias = gradients[bias : bias + m] if bias >= 0 else np.empty(m, np.float32)
        if flags & RELU:
            kernels.relu_backward(by_out, values[place : place + n * m].reshape(n, m), by_bias, fresh)
        else:
            if flags & SIGMOID:
                kernels.sigmoid_backward(flat, values[place : place + n * m])
            kernels.column_sums(by_out, by_bias, fresh)
        half, matrix, by_matrix = flags & HALF != 0, weights[row[WEIGHT] :], gradients[row[WEIGHT] :]
        both, new = (not (defer and deferrable(by, row)), flags & BY_A != 0), (fresh, flags & ADD_A == 0)
        gemm.backward(by, half, row[DETAIL], flat, a, matrix, by_matrix, by_a, n, m, k, both, new)
    elif kind == INTERACTION:
        size, shape = n * row[DETAIL] * k, (n, row[DETAIL], k)
        vectors = _place(row[B], n, values, rows)[:size].reshape(shape)
        by_vectors = _place(row[B], n, by_values, by_rows)[:size].reshape(shape)
        x, by_x = a[: n * k].reshape(n, k), by_a[: n * k].reshape(n, k)
        kernels.interact_backward(x, vectors, by_out, by_x, by_vectors, flags & ADD_A != 0, flags & ADD_B != 0)
    elif kind == COPY and flags & BY_A:
        kernels.hand_on(flat[row[DETAIL] :], n, k, m, by_a, k, flags & ADD_A != 0)
    elif kind == SLICE:
        if flags & BY_A and not flags & ADD_A:
            by_a[: n * k] = 0.0  # the columns beside it
        if flags & BY_A:
            kernels.hand_on(flat, n, m, m, by_a[row[DETAIL] :], k, True)
    elif kind in (TOP_K, THRESHOLD):
        top_k_kernels.backward(row, n, a[: n * k], by_a[: n * k], values, flat)
    elif kind == GATE:
        b, by_b = _place(row[B], n, values, rows), _place(row[B], n, by_values, by_rows)
        by_c = _place(row[C], n, by_values, by_rows)
        wanted = flags & BY_A != 0, flags & BY_B != 0, flags & BY_C != 0
        add = flags & ADD_A != 0, flags & ADD_B != 0, flags & ADD_C != 0
        kernels.gate_backward(flat, a, b, by_a, by_b, by_c, wanted, add)
    elif kind > MACHINE:
        messages.backward(mail, row, n, values, by_a, flat)
    elif kind > GATE:
        field_kernels.backward(row, n, fresh, a[: n * k], by_a[: n * k], weights, gradients, flat)
