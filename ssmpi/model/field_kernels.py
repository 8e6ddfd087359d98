"""The loops of ``field_operators``, and of rows that hold a vector and a weight, compiled and run without the GIL. All
float32; ``add`` accumulates into ``out`` instead of overwriting it.
"""

from __future__ import annotations

import numpy as np

from ssmpi.model.kernels import SUMS, column_sums, hand_on
from ssmpi.model.program import (
    ADD,
    ADD_A,
    ADD_SUMS,
    BIAS,
    BY_A,
    DETAIL,
    FLAGS,
    INPUTS,
    KIND,
    MACHINE,
    SCALE,
    TAKE,
    WEIGHT,
)
from ssmpi.runtime.compiled.jit import njit


@njit(cache=True, nogil=True, fastmath=SUMS)
def add_sums(x: np.ndarray, out: np.ndarray) -> None:
    """out (batch,) += the sum of x (batch, n) over n."""
    for b in range(x.shape[0]):
        total = out[b]
        for k in range(x.shape[1]):
            total += x[b, k]
        out[b] = total


@njit(cache=True, nogil=True)
def spread(gradient: np.ndarray, out: np.ndarray, add: bool) -> None:
    """out (batch, n) = gradient (batch,), repeated n times."""
    for b in range(out.shape[0]):
        for k in range(out.shape[1]):
            out[b, k] = gradient[b] + (out[b, k] if add else np.float32(0.0))


@njit(cache=True, nogil=True)
def scale(x: np.ndarray, vectors: np.ndarray, out: np.ndarray) -> None:
    """out (batch, n, dim) = x (batch, n) times vectors (n, dim)."""
    for b in range(out.shape[0]):
        for i in range(out.shape[1]):
            for k in range(out.shape[2]):
                out[b, i, k] = x[b, i] * vectors[i, k]


@njit(cache=True, nogil=True, fastmath={"contract"})
def by_vectors(x: np.ndarray, by_out: np.ndarray, out: np.ndarray, fresh: bool) -> None:
    """From the gradient of ``scale``'s output to that of vectors, accumulated unless ``fresh``."""
    if fresh:
        out[:] = 0.0
    for b in range(by_out.shape[0]):
        for i in range(by_out.shape[1]):
            for k in range(by_out.shape[2]):
                out[i, k] += x[b, i] * by_out[b, i, k]


@njit(cache=True, nogil=True, fastmath=SUMS)
def by_scaled(by_out: np.ndarray, vectors: np.ndarray, out: np.ndarray, add: bool) -> None:
    """From the gradient of ``scale``'s output to that of x."""
    for b in range(by_out.shape[0]):
        for i in range(by_out.shape[1]):
            total = out[b, i] if add else np.float32(0.0)
            for k in range(by_out.shape[2]):
                total += by_out[b, i, k] * vectors[i, k]
            out[b, i] = total


@njit(cache=True, nogil=True, fastmath=SUMS)
def pairs(vectors: np.ndarray, out: np.ndarray) -> None:
    """out (batch,) = sum over i of <v_i, v_0 + ... + v_(i-1)>, of vectors (batch, n, dim): every pair once, without the
    difference of two large sums in Rendle's 0.5 ((sum v)^2 - sum v^2).
    """
    n, dim = vectors.shape[1], vectors.shape[2]
    before, found = np.empty(dim, np.float32), np.empty(dim, np.float32)
    for b in range(vectors.shape[0]):
        before[:] = 0.0
        found[:] = 0.0
        for i in range(n):
            for k in range(dim):
                found[k] += vectors[b, i, k] * before[k]
                before[k] += vectors[b, i, k]
        out[b] = found.sum()


@njit(cache=True, nogil=True, fastmath=SUMS)
def by_pairs(vectors: np.ndarray, by_out: np.ndarray, out: np.ndarray, add: bool) -> None:
    """From the gradient of ``pairs``' output to that of vectors: for each vector, the sum of the others."""
    n, dim = vectors.shape[1], vectors.shape[2]
    total = np.empty(dim, np.float32)
    for b in range(vectors.shape[0]):
        total[:] = 0.0
        for i in range(n):
            for k in range(dim):
                total[k] += vectors[b, i, k]
        for i in range(n):
            for k in range(dim):
                gradient = by_out[b] * (total[k] - vectors[b, i, k])
                out[b, i, k] = gradient + (out[b, i, k] if add else np.float32(0.0))


@njit(cache=True, nogil=True, inline="always")
def forward(row: np.ndarray, n: int, x: np.ndarray, weights: np.ndarray, out: np.ndarray) -> None:
    """Execute one instruction ``row`` on ``n`` examples, from its input ``x``; all arrays are flat."""
    kind, k, detail, weight = row[KIND], row[INPUTS], row[DETAIL], row[WEIGHT]
    if kind == ADD:
        hand_on(x, 1, n * k, 0, out, 0, detail != 0)
    elif kind == TAKE:
        tables = n * k // row[BIAS]
        hand_on(x[detail:], tables, out.size // tables, row[BIAS], out, out.size // tables, False)
    elif kind == ADD_SUMS:
        if row[BIAS] >= 0:
            for b in range(n):
                out[b] = weights[row[BIAS]]
        add_sums(x.reshape(n, k), out)
    elif kind == SCALE:
        scale(x.reshape(n, k), weights[weight : weight + k * detail].reshape(k, detail), out.reshape(n, k, detail))
    elif kind == MACHINE:
        pairs(x.reshape(n, k // detail, detail), out)


@njit(cache=True, nogil=True, inline="always")
def backward(
    row: np.ndarray, n: int, fresh: bool, x: np.ndarray, by_x: np.ndarray, weights: np.ndarray, gradients: np.ndarray,
    by_out: np.ndarray,
) -> None:  # fmt: skip
    """From the gradient of the instruction's output to those of its input and of its parameters, accumulated unless
    ``fresh``.
    """
    kind, k, detail, weight = row[KIND], row[INPUTS], row[DETAIL], row[WEIGHT]
    wanted, add = row[FLAGS] & BY_A != 0, row[FLAGS] & ADD_A != 0
    if kind == ADD and wanted:
        hand_on(by_out, 1, n * k, 0, by_x, 0, add)
    elif kind == TAKE:
        tables = n * k // row[BIAS]
        width = by_out.size // tables
        hand_on(by_out, tables, width, width, by_x[detail:], row[BIAS], False)
    elif kind == ADD_SUMS:
        if row[BIAS] >= 0:
            column_sums(by_out.reshape(n, 1), gradients[row[BIAS] : row[BIAS] + 1], fresh)
        if wanted:
            spread(by_out, by_x.reshape(n, k), add)
    elif kind == SCALE:
        end, by_scales = weight + k * detail, by_out.reshape(n, k, detail)
        by_vectors(x.reshape(n, k), by_scales, gradients[weight:end].reshape(k, detail), fresh)
        if wanted:
            by_scaled(by_scales, weights[weight:end].reshape(k, detail), by_x.reshape(n, k), add)
    elif kind == MACHINE and wanted:
        shape = n, k // detail, detail
        by_pairs(x.reshape(shape), by_out, by_x.reshape(shape), add)
