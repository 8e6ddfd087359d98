"""The instruction LINEAR, by BLAS or by oneDNN's kernels in float32 or in bfloat16: out (n, m) = x (n, k) weight
(m, k)^T + bias (m,), if there is one, then the activation. Compiled.
"""

from __future__ import annotations

import numpy as np

from ssmpi.model import blas, kernels, onednn_gemm
from ssmpi.model.program import ADD_A, BIAS, BY_A, DETAIL, FLAGS, INPUTS, OUT, OUTPUTS, RELU, ROWS_PLACE, SIGMOID, A
from ssmpi.model.step_args import (
    EXAMPLES,
    FIRST,
    GRADIENTS,
    IN_PIECES,
    LAST,
    SGEMM,
    bias,
    by_value,
    by_weight,
    operands,
    value,
    weight,
)
from ssmpi.runtime.compiled.jit import njit
from ssmpi.runtime.compiled.kernel_args import array_at


@njit(cache=True, nogil=True)
def blas_forward(args: np.ndarray, row: np.ndarray) -> None:
    """By BLAS."""
    n, k, m = args[EXAMPLES], row[INPUTS], row[OUTPUTS]
    blas.outputs(args[SGEMM], value(args, row[A]), weight(args, row), value(args, row[OUT]), n, m, k)
    _activate(args, row)


@njit(cache=True, nogil=True)
def blas_backward(args: np.ndarray, row: np.ndarray) -> None:
    """By BLAS."""
    n, k, m, fresh, add = args[EXAMPLES], row[INPUTS], row[OUTPUTS], args[FIRST] != 0, row[FLAGS] & ADD_A != 0
    by_out = by_value(args, row[OUT])
    _by_activation(args, row)
    blas.by_weight(args[SGEMM], by_out, value(args, row[A]), by_weight(args, row), n, m, k, fresh)
    if row[FLAGS] & BY_A:
        blas.by_values(args[SGEMM], by_out, weight(args, row), by_value(args, row[A]), n, m, k, not add)


@njit(cache=True, nogil=True)
def single_forward(args: np.ndarray, row: np.ndarray) -> None:
    """By oneDNN in float32. The weight of a batch in several pieces is packed once."""
    n, k, m, laid_out, place = args[EXAMPLES], row[INPUTS], row[OUTPUTS], args[IN_PIECES] != 0, row[DETAIL]
    by, matrix, out, relu = operands(args), weight(args, row), value(args, row[OUT])[: n * m], row[FLAGS] & RELU != 0
    if laid_out and args[FIRST]:
        onednn_gemm.refresh(by, place, matrix, m, k)
    onednn_gemm.outputs(by, laid_out, place, value(args, row[A]), matrix, bias(args, row, m), relu, out, n, m, k)
    if row[FLAGS] & SIGMOID:
        kernels.sigmoid(out)


@njit(cache=True, nogil=True)
def single_backward(args: np.ndarray, row: np.ndarray) -> None:
    """By oneDNN in float32. The weight's gradient is deferred in a batch's last piece: its operands remain in the
    buffers until the next step.
    """
    n, k, m, fresh, add = args[EXAMPLES], row[INPUTS], row[OUTPUTS], args[FIRST] != 0, row[FLAGS] & ADD_A != 0
    by, by_out = operands(args), by_value(args, row[OUT])
    _by_activation(args, row)
    if not args[LAST] or row[A] == ROWS_PLACE:
        onednn_gemm.by_weight(by, by_out, value(args, row[A]), by_weight(args, row), n, m, k, fresh)
    if row[FLAGS] & BY_A:
        onednn_gemm.by_values(by, by_out, weight(args, row), by_value(args, row[A]), n, m, k, not add)


@njit(cache=True, nogil=True)
def half_forward(args: np.ndarray, row: np.ndarray) -> None:
    """By oneDNN in bfloat16. The weight is rounded once a batch."""
    n, k, m, place, by = args[EXAMPLES], row[INPUTS], row[OUTPUTS], row[DETAIL], operands(args)
    if args[FIRST]:
        onednn_gemm.refresh_half(by, place, weight(args, row), m, k, row[FLAGS] & BY_A != 0)
    onednn_gemm.outputs_half(by, place, value(args, row[A]), value(args, row[OUT]), n, m, k)
    _activate(args, row)


@njit(cache=True, nogil=True)
def half_backward(args: np.ndarray, row: np.ndarray) -> None:
    """By oneDNN in bfloat16."""
    n, k, m, fresh, add = args[EXAMPLES], row[INPUTS], row[OUTPUTS], args[FIRST] != 0, row[FLAGS] & ADD_A != 0
    by, by_out = operands(args), by_value(args, row[OUT])
    _by_activation(args, row)
    onednn_gemm.by_weight_half(by, by_out, value(args, row[A]), by_weight(args, row), n, m, k, fresh)
    if row[FLAGS] & BY_A:
        onednn_gemm.by_values_half(by, row[DETAIL], by_out, by_value(args, row[A]), n, m, k, not add)


@njit(cache=True, nogil=True)
def _activate(args: np.ndarray, row: np.ndarray) -> None:
    """Add the bias to a product, then the activation."""
    n, m, relu, out = args[EXAMPLES], row[OUTPUTS], row[FLAGS] & RELU != 0, value(args, row[OUT])
    flat = out[: n * m]
    if row[BIAS] >= 0:
        kernels.add_bias(out, bias(args, row, m), n, m, relu)
    elif relu:
        kernels.relu(flat)
    if row[FLAGS] & SIGMOID:
        kernels.sigmoid(flat)


@njit(cache=True, nogil=True)
def _by_activation(args: np.ndarray, row: np.ndarray) -> None:
    """From the gradient of the output to that of the product, in its place, and that of the bias."""
    n, m, fresh = args[EXAMPLES], row[OUTPUTS], args[FIRST] != 0
    gradients, out, flat = array_at(args, GRADIENTS, np.float32), value(args, row[OUT]), by_value(args, row[OUT])
    by_out, output = flat[: n * m].reshape(n, m), out[: n * m].reshape(n, m)
    by_bias = gradients[row[BIAS] : row[BIAS] + m] if row[BIAS] >= 0 else np.empty(m, np.float32)
    if row[FLAGS] & RELU:
        kernels.relu_backward(by_out, output, by_bias, fresh)
    else:
        if row[FLAGS] & SIGMOID:
            kernels.sigmoid_backward(flat[: n * m], out[: n * m])
        kernels.column_sums(by_out, by_bias, fresh)
