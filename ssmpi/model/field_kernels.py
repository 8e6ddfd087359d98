"""The loops of ``field_operators``, and of rows that hold a vector and a weight, compiled and run without the GIL. All
float32; ``add`` accumulates into ``out`` instead of overwriting it.
"""

from __future__ import annotations

import numpy as np

from ssmpi.model.kernels import SUMS, column_sums, hand_on
from ssmpi.model.program import ADD_A, BIAS, BY_A, DETAIL, FLAGS, INPUTS, OUT, OUTPUTS, A
from ssmpi.model.step_args import EXAMPLES, FIRST, GRADIENTS, bias, by_value, by_weight, value, weight
from ssmpi.runtime.compiled.jit import njit
from ssmpi.runtime.compiled.kernel_args import array_at


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


@njit(cache=True, nogil=True)
def add_forward(args: np.ndarray, row: np.ndarray) -> None:
    """ADD: out = x, or out += x."""
    hand_on(value(args, row[A]), 1, args[EXAMPLES] * row[INPUTS], 0, value(args, row[OUT]), 0, row[DETAIL] != 0)


@njit(cache=True, nogil=True)
def add_backward(args: np.ndarray, row: np.ndarray) -> None:
    """Of ADD."""
    if row[FLAGS] & BY_A:
        by_out, size, add = by_value(args, row[OUT]), args[EXAMPLES] * row[INPUTS], row[FLAGS] & ADD_A != 0
        hand_on(by_out, 1, size, 0, by_value(args, row[A]), 0, add)


@njit(cache=True, nogil=True)
def take_forward(args: np.ndarray, row: np.ndarray) -> None:
    """TAKE: out (batch, tables, width) = some columns of rows."""
    tables, across = args[EXAMPLES] * row[INPUTS] // row[BIAS], row[BIAS]
    width = args[EXAMPLES] * row[OUTPUTS] // tables
    hand_on(value(args, row[A])[row[DETAIL] :], tables, width, across, value(args, row[OUT]), width, False)


@njit(cache=True, nogil=True)
def take_backward(args: np.ndarray, row: np.ndarray) -> None:
    """Of TAKE."""
    tables, across = args[EXAMPLES] * row[INPUTS] // row[BIAS], row[BIAS]
    width = args[EXAMPLES] * row[OUTPUTS] // tables
    hand_on(by_value(args, row[OUT]), tables, width, width, by_value(args, row[A])[row[DETAIL] :], across, False)


@njit(cache=True, nogil=True)
def add_sums_forward(args: np.ndarray, row: np.ndarray) -> None:
    """ADD_SUMS: ``add_sums``, to the bias if there is one."""
    n, k = args[EXAMPLES], row[INPUTS]
    out = value(args, row[OUT])[:n]
    if row[BIAS] >= 0:
        first = bias(args, row, 1)[0]
        for b in range(n):
            out[b] = first
    add_sums(value(args, row[A])[: n * k].reshape(n, k), out)


@njit(cache=True, nogil=True)
def add_sums_backward(args: np.ndarray, row: np.ndarray) -> None:
    """Of ADD_SUMS."""
    n, k, by_out = args[EXAMPLES], row[INPUTS], by_value(args, row[OUT])
    if row[BIAS] >= 0:
        by_bias = array_at(args, GRADIENTS, np.float32)[row[BIAS] : row[BIAS] + 1]
        column_sums(by_out[:n].reshape(n, 1), by_bias, args[FIRST] != 0)
    if row[FLAGS] & BY_A:
        spread(by_out, by_value(args, row[A])[: n * k].reshape(n, k), row[FLAGS] & ADD_A != 0)


@njit(cache=True, nogil=True)
def scale_forward(args: np.ndarray, row: np.ndarray) -> None:
    """SCALE: ``scale``."""
    n, k, dim = args[EXAMPLES], row[INPUTS], row[DETAIL]
    x, out = value(args, row[A])[: n * k].reshape(n, k), value(args, row[OUT])[: n * k * dim].reshape(n, k, dim)
    scale(x, weight(args, row)[: k * dim].reshape(k, dim), out)


@njit(cache=True, nogil=True)
def scale_backward(args: np.ndarray, row: np.ndarray) -> None:
    """Of SCALE."""
    n, k, dim = args[EXAMPLES], row[INPUTS], row[DETAIL]
    x, by_out = value(args, row[A])[: n * k].reshape(n, k), by_value(args, row[OUT])[: n * k * dim].reshape(n, k, dim)
    by_vectors(x, by_out, by_weight(args, row)[: k * dim].reshape(k, dim), args[FIRST] != 0)
    if row[FLAGS] & BY_A:
        by_x, vectors = by_value(args, row[A])[: n * k].reshape(n, k), weight(args, row)[: k * dim].reshape(k, dim)
        by_scaled(by_out, vectors, by_x, row[FLAGS] & ADD_A != 0)


@njit(cache=True, nogil=True)
def machine_forward(args: np.ndarray, row: np.ndarray) -> None:
    """MACHINE: ``pairs``."""
    n, k, dim = args[EXAMPLES], row[INPUTS], row[DETAIL]
    pairs(value(args, row[A])[: n * k].reshape(n, k // dim, dim), value(args, row[OUT]))


@njit(cache=True, nogil=True)
def machine_backward(args: np.ndarray, row: np.ndarray) -> None:
    """Of MACHINE."""
    if row[FLAGS] & BY_A:
        n, k, dim = args[EXAMPLES], row[INPUTS], row[DETAIL]
        x, by_x = value(args, row[A])[: n * k], by_value(args, row[A])[: n * k]
        shape = n, k // dim, dim
        by_pairs(x.reshape(shape), by_value(args, row[OUT]), by_x.reshape(shape), row[FLAGS] & ADD_A != 0)
