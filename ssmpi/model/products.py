"""The matrix products of a linear layer, by ``blocks`` or ``blas``, depending on its program and the processor."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from ssmpi.model import blas, blocks, kernels


class Products(NamedTuple):
    """The address of BLAS's ``sgemm``, the operands of oneDNN's kernels, and whether the weights of float32 layers are
    packed for them (``laid_out``).
    """

    sgemm: int
    operands: blocks.Operands
    laid_out: bool = False


@njit(cache=True, nogil=True, inline="always")
def refresh(products: Products, half: bool, place: int, weight: np.ndarray, m: int, k: int, backward: bool) -> None:
    """Pack the current weight float32 (m, k) at ``place`` of the copies, once per step."""
    operands = products.operands
    if half:
        blocks.refresh_half(operands, place, weight, m, k, backward)
    elif products.laid_out:
        blocks.refresh(operands, place, weight, m, k)


@njit(cache=True, nogil=True, inline="always")
def outputs(
    products: Products, half: bool, place: int, values: np.ndarray, weight: np.ndarray, bias: np.ndarray, relu: bool,
    out: np.ndarray, n: int, m: int, k: int,
) -> None:  # fmt: skip
    """out (n, m) = values (n, k) weight (m, k)^T + bias (m,), if there is one, then ``relu``; all float32."""
    operands = products.operands
    if operands.kernels.single and not half:
        blocks.outputs(operands, products.laid_out, place, values, weight, bias, relu, out, n, m, k)
        return
    if half:
        blocks.outputs_half(operands, place, values, out, n, m, k)
    else:
        blas.outputs(products.sgemm, values, weight, out, n, m, k)
    if bias.size:
        kernels.add_bias(out, bias, n, m, relu)
    elif relu:
        kernels.relu(out)


@njit(cache=True, nogil=True, inline="always")
def by_weight(
    products: Products, half: bool, by_out: np.ndarray, values: np.ndarray, out: np.ndarray, n: int, m: int, k: int,
    fresh: bool,
) -> None:  # fmt: skip
    """out (m, k) = by_out (n, m)^T values (n, k), accumulated unless ``fresh``; all float32."""
    operands = products.operands
    if half:
        blocks.by_weight_half(operands, by_out, values, out, n, m, k, fresh)
    elif operands.kernels.single:
        blocks.by_weight(operands, by_out, values, out, n, m, k, fresh)
    else:
        blas.by_weight(products.sgemm, by_out, values, out, n, m, k, fresh)


@njit(cache=True, nogil=True, inline="always")
def by_values(
    products: Products, half: bool, place: int, by_out: np.ndarray, weight: np.ndarray, out: np.ndarray, n: int, m: int,
    k: int, fresh: bool,
) -> None:  # fmt: skip
    """out (n, k) = by_out (n, m) weight (m, k), accumulated unless ``fresh``; all float32."""
    operands = products.operands
    if half:
        blocks.by_values_half(operands, place, by_out, out, n, m, k, fresh)
    elif operands.kernels.single:
        blocks.by_values(operands, by_out, weight, out, n, m, k, fresh)
    else:
        blas.by_values(products.sgemm, by_out, weight, out, n, m, k, fresh)
