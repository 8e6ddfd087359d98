"""The matrix products of a linear layer, by ``onednn_gemm`` or ``blas``, depending on its program and the processor."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ssmpi.model import blas, kernels, onednn_gemm
from ssmpi.runtime.compiled.jit import njit


class Gemm(NamedTuple):
    """The address of BLAS's ``sgemm``, the operands of oneDNN's kernels, and whether the weights of float32 layers are
    packed for them (``laid_out``).
    """

    sgemm: int
    operands: onednn_gemm.Operands
    laid_out: bool = False


@njit(cache=True, nogil=True, inline="always")
def refresh(gemm: Gemm, half: bool, place: int, weight: np.ndarray, m: int, k: int, backward: bool) -> None:
    """Pack the current weight float32 (m, k) at ``place`` of the copies, once per step."""
    operands = gemm.operands
    if half:
        onednn_gemm.refresh_half(operands, place, weight, m, k, backward)
    elif gemm.laid_out:
        onednn_gemm.refresh(operands, place, weight, m, k)


@njit(cache=True, nogil=True, inline="always")
def outputs(
    gemm: Gemm, half: bool, place: int, values: np.ndarray, weight: np.ndarray, bias: np.ndarray, relu: bool,
    out: np.ndarray, n: int, m: int, k: int,
) -> None:  # fmt: skip
    """out (n, m) = values (n, k) weight (m, k)^T + bias (m,), if there is one, then ``relu``; all float32."""
    operands = gemm.operands
    if operands.kernels.single and not half:
        onednn_gemm.outputs(operands, gemm.laid_out, place, values, weight, bias, relu, out, n, m, k)
        return
    if half:
        onednn_gemm.outputs_half(operands, place, values, out, n, m, k)
    else:
        blas.outputs(gemm.sgemm, values, weight, out, n, m, k)
    if bias.size:
        kernels.add_bias(out, bias, n, m, relu)
    elif relu:
        kernels.relu(out)


@njit(cache=True, nogil=True, inline="always")
def backward(
    gemm: Gemm, half: bool, place: int, by_out: np.ndarray, values: np.ndarray, weight: np.ndarray,
    by_weight: np.ndarray, by_values: np.ndarray, n: int, m: int, k: int, wanted: tuple[bool, bool],
    fresh: tuple[bool, bool],
) -> None:  # fmt: skip
    """by_weight (m, k) = by_out (n, m)^T values (n, k), by_values (n, k) = by_out (n, m) weight (m, k), each if it is
    ``wanted``, and accumulated unless ``fresh``; all float32.
    """
    operands = gemm.operands
    if half:
        if wanted[0]:
            onednn_gemm.by_weight_half(operands, by_out, values, by_weight, n, m, k, fresh[0])
        if wanted[1]:
            onednn_gemm.by_values_half(operands, place, by_out, by_values, n, m, k, fresh[1])
    elif operands.kernels.single:
        if wanted[0]:
            onednn_gemm.by_weight(operands, by_out, values, by_weight, n, m, k, fresh[0])
        if wanted[1]:
            onednn_gemm.by_values(operands, by_out, weight, by_values, n, m, k, fresh[1])
    else:
        if wanted[0]:
            blas.by_weight(gemm.sgemm, by_out, values, by_weight, n, m, k, fresh[0])
        if wanted[1]:
            blas.by_values(gemm.sgemm, by_out, weight, by_values, n, m, k, fresh[1])
