"""The loops of ``Product``, ``LayerNorm``, ``Activation`` and ``Dropout``, compiled and run without the GIL. All are in
float32; ``add`` accumulates into ``out`` instead of overwriting it.
"""

from __future__ import annotations

import math

import numpy as np
from numba import uint64

from ssmpi.model import kernels
from ssmpi.model.kernels import SUMS
from ssmpi.model.operators import ACTIVATIONS
from ssmpi.model.program import ADD_A, ADD_B, BIAS, BY_A, BY_B, DETAIL, FLAGS, INPUTS, OUT, A, B
from ssmpi.model.step_args import (
    EXAMPLES,
    FIRST,
    FIRST_EXAMPLE,
    GRADIENTS,
    SCORING,
    bias,
    by_value,
    by_weight,
    value,
    weight,
)
from ssmpi.runtime.compiled.hash_table import mix
from ssmpi.runtime.compiled.jit import njit
from ssmpi.runtime.compiled.kernel_args import array_at

RELU, GELU, SILU, TANH = (ACTIVATIONS.index(name) for name in ("relu", "gelu", "silu", "tanh"))
EPSILON = 1e-5  # added to a variance, as in torch
WHOLE = 1 << 24  # the rate 1 of a dropout
ROOT_HALF, DENSITY = math.sqrt(0.5), 1.0 / math.sqrt(2.0 * math.pi)


@njit(cache=True, nogil=True)
def activation(which: int, x: float) -> float:
    """Of x, which is not RELU."""
    if which == GELU:
        return 0.5 * x * (1.0 + math.erf(x * ROOT_HALF))
    if which == TANH:
        return math.tanh(x)
    share = 1.0 / (1.0 + math.exp(-x))
    return x * share if which == SILU else share


@njit(cache=True, nogil=True)
def derivative(which: int, x: float) -> float:
    """Of ``activation`` at x."""
    if which == GELU:
        return 0.5 * (1.0 + math.erf(x * ROOT_HALF)) + x * DENSITY * math.exp(-0.5 * x * x)
    if which == TANH:
        return 1.0 - math.tanh(x) ** 2
    share = 1.0 / (1.0 + math.exp(-x))
    return share * (1.0 + x * (1.0 - share)) if which == SILU else share * (1.0 - share)


@njit(cache=True, nogil=True)
def activate_forward(args: np.ndarray, row: np.ndarray) -> None:
    """ACTIVATE: out = activation(x)."""
    which, size = row[DETAIL], args[EXAMPLES] * row[INPUTS]
    x, out = value(args, row[A])[:size], value(args, row[OUT])[:size]
    if which == RELU:
        for i in range(size):
            out[i] = np.float32(0.0) if x[i] < 0.0 else x[i]
    else:
        for i in range(size):
            out[i] = np.float32(activation(which, np.float64(x[i])))


@njit(cache=True, nogil=True)
def activate_backward(args: np.ndarray, row: np.ndarray) -> None:
    """Of ACTIVATE."""
    if row[FLAGS] & BY_A:
        which, size, add = row[DETAIL], args[EXAMPLES] * row[INPUTS], row[FLAGS] & ADD_A != 0
        x, by_out, by_x = value(args, row[A])[:size], by_value(args, row[OUT])[:size], by_value(args, row[A])[:size]
        if which == RELU:
            for i in range(size):
                passed = np.float32(0.0) if x[i] <= 0.0 else by_out[i]
                by_x[i] = passed + (by_x[i] if add else np.float32(0.0))
        else:
            for i in range(size):
                passed = by_out[i] * np.float32(derivative(which, np.float64(x[i])))
                by_x[i] = passed + (by_x[i] if add else np.float32(0.0))


@njit(cache=True, nogil=True)
def prelu_forward(args: np.ndarray, row: np.ndarray) -> None:
    """PRELU: out = x where it is positive, otherwise its slope times x."""
    n, k, slopes = args[EXAMPLES], row[INPUTS], weight(args, row)
    x, out = value(args, row[A])[: n * k].reshape(n, k), value(args, row[OUT])[: n * k].reshape(n, k)
    for b in range(n):
        for i in range(k):
            out[b, i] = x[b, i] if x[b, i] > 0.0 else slopes[i] * x[b, i]


@njit(cache=True, nogil=True, fastmath={"contract"})
def by_slopes(x: np.ndarray, by_out: np.ndarray, out: np.ndarray, fresh: bool) -> None:
    """From the gradient of PRELU's output (batch, n) to that of its slopes (n,), accumulated unless ``fresh``."""
    if fresh:
        out[:] = 0.0
    for b in range(x.shape[0]):
        for i in range(x.shape[1]):
            out[i] += np.float32(0.0) if x[b, i] > 0.0 else by_out[b, i] * x[b, i]


@njit(cache=True, nogil=True)
def prelu_backward(args: np.ndarray, row: np.ndarray) -> None:
    """Of PRELU."""
    n, k, slopes, add = args[EXAMPLES], row[INPUTS], weight(args, row), row[FLAGS] & ADD_A != 0
    x, by_out = value(args, row[A])[: n * k].reshape(n, k), by_value(args, row[OUT])[: n * k].reshape(n, k)
    by_slopes(x, by_out, by_weight(args, row)[:k], args[FIRST] != 0)
    if row[FLAGS] & BY_A:
        by_x = by_value(args, row[A])[: n * k].reshape(n, k)
        for b in range(n):
            for i in range(k):
                passed = by_out[b, i] if x[b, i] > 0.0 else slopes[i] * by_out[b, i]
                by_x[b, i] = passed + (by_x[b, i] if add else np.float32(0.0))


@njit(cache=True, nogil=True)
def multiply_forward(args: np.ndarray, row: np.ndarray) -> None:
    """MULTIPLY: two values, elementwise."""
    size = args[EXAMPLES] * row[INPUTS]
    kernels.multiply(value(args, row[A])[:size], value(args, row[B]), value(args, row[OUT]), False)


@njit(cache=True, nogil=True)
def multiply_backward(args: np.ndarray, row: np.ndarray) -> None:
    """Of MULTIPLY, whose two inputs may be the same value."""
    flags, by_out = row[FLAGS], by_value(args, row[OUT])[: args[EXAMPLES] * row[INPUTS]]
    if flags & BY_B:
        kernels.multiply(by_out, value(args, row[A]), by_value(args, row[B]), flags & ADD_B != 0)
    if flags & BY_A:
        kernels.multiply(by_out, value(args, row[B]), by_value(args, row[A]), flags & ADD_A != 0)


@njit(cache=True, nogil=True, fastmath=SUMS)
def moments(x: np.ndarray) -> tuple[np.float32, np.float32]:
    """The mean of x (dim,), and 1 / sqrt(its variance + EPSILON)."""
    total = np.float32(0.0)
    for k in range(x.shape[0]):
        total += x[k]
    mean, total = np.float32(total / x.shape[0]), np.float32(0.0)
    for k in range(x.shape[0]):
        total += (x[k] - mean) * (x[k] - mean)
    return mean, np.float32(1.0 / math.sqrt(total / x.shape[0] + EPSILON))


@njit(cache=True, nogil=True, fastmath={"contract"})
def normalize(x: np.ndarray, scale: np.ndarray, shift: np.ndarray, out: np.ndarray) -> None:
    """out = the vectors of x (batch, n, dim), each normalized, times scale (n, dim) plus shift (n, dim)."""
    for b in range(x.shape[0]):
        for i in range(x.shape[1]):
            mean, root = moments(x[b, i])
            for k in range(x.shape[2]):
                out[b, i, k] = (x[b, i, k] - mean) * root * scale[i, k] + shift[i, k]


@njit(cache=True, nogil=True, fastmath=SUMS)
def by_normalized(
    x: np.ndarray, scale: np.ndarray, by_out: np.ndarray, by_scale: np.ndarray, out: np.ndarray, fresh: bool, add: bool
) -> None:  # fmt: skip
    """From the gradient of ``normalize``'s output to that of scale, accumulated unless ``fresh``, and, if there is room
    for it, that of x.
    """
    dim = x.shape[2]
    if fresh:
        by_scale[:] = 0.0
    for b in range(x.shape[0]):
        for i in range(x.shape[1]):
            mean, root = moments(x[b, i])
            total, along = np.float32(0.0), np.float32(0.0)
            for k in range(dim):
                by_normal, normal = by_out[b, i, k] * scale[i, k], (x[b, i, k] - mean) * root
                by_scale[i, k] += by_out[b, i, k] * normal
                total += by_normal
                along += by_normal * normal
            total, along = np.float32(total / dim), np.float32(along / dim)
            for k in range(out.shape[2]):
                by_normal, normal = by_out[b, i, k] * scale[i, k], (x[b, i, k] - mean) * root
                gradient = (by_normal - total - normal * along) * root
                out[b, i, k] = gradient + (out[b, i, k] if add else np.float32(0.0))


@njit(cache=True, nogil=True)
def normalize_forward(args: np.ndarray, row: np.ndarray) -> None:
    """NORMALIZE: ``normalize``."""
    n, width, dim = args[EXAMPLES], row[INPUTS], row[DETAIL]
    shape, vectors, size = (n, width // dim, dim), (width // dim, dim), n * width
    scale, shift = weight(args, row)[:width].reshape(vectors), bias(args, row, width).reshape(vectors)
    normalize(value(args, row[A])[:size].reshape(shape), scale, shift, value(args, row[OUT])[:size].reshape(shape))


@njit(cache=True, nogil=True)
def normalize_backward(args: np.ndarray, row: np.ndarray) -> None:
    """Of NORMALIZE."""
    n, width, dim, fresh = args[EXAMPLES], row[INPUTS], row[DETAIL], args[FIRST] != 0
    shape, vectors, size = (n, width // dim, dim), (width // dim, dim), n * width
    x, by_out = value(args, row[A])[:size].reshape(shape), by_value(args, row[OUT])[:size]
    by_shift = array_at(args, GRADIENTS, np.float32)[row[BIAS] : row[BIAS] + width]
    kernels.column_sums(by_out.reshape(n, width), by_shift, fresh)
    scale, by_scale = weight(args, row)[:width].reshape(vectors), by_weight(args, row)[:width].reshape(vectors)
    by_x = by_value(args, row[A])[:size].reshape(shape) if row[FLAGS] & BY_A else np.empty((0, 0, 0), np.float32)
    by_normalized(x, scale, by_out.reshape(shape), by_scale, by_x, fresh, row[FLAGS] & ADD_A != 0)


@njit(cache=True, nogil=True)
def drop(values: np.ndarray, first_example: int, operator: int, dropped: int, out: np.ndarray, add: bool) -> None:
    """out = values (batch, n), of which about ``dropped`` in 2^24 become 0, and the others are scaled up so that the
    expectation stays: a function of the example's number, the operator's and the column alone.
    """
    golden, factor = uint64(0x9E3779B97F4A7C15), np.float32(WHOLE / (WHOLE - dropped))
    for b in range(values.shape[0]):
        key = mix(mix(uint64(first_example + b) + golden) + uint64(operator + 1) * golden)
        for i in range(values.shape[1]):
            drawn = mix(key + uint64(i + 1) * golden) >> uint64(40)  # 24 bits
            kept = values[b, i] * factor if drawn >= uint64(dropped) else np.float32(0.0)
            out[b, i] = kept + (out[b, i] if add else np.float32(0.0))


@njit(cache=True, nogil=True)
def drop_forward(args: np.ndarray, row: np.ndarray) -> None:
    """DROP: ``drop`` in training."""
    n, k, first = args[EXAMPLES], row[INPUTS], args[FIRST_EXAMPLE]
    x, out = value(args, row[A])[: n * k], value(args, row[OUT])[: n * k]
    if first == SCORING:
        kernels.copy(x, out)
    else:
        drop(x.reshape(n, k), first, row[BIAS], row[DETAIL], out.reshape(n, k), False)


@njit(cache=True, nogil=True)
def drop_backward(args: np.ndarray, row: np.ndarray) -> None:
    """Of DROP: of the same values, which are drawn again."""
    if row[FLAGS] & BY_A:
        n, k, add = args[EXAMPLES], row[INPUTS], row[FLAGS] & ADD_A != 0
        by_out, by_x = by_value(args, row[OUT])[: n * k].reshape(n, k), by_value(args, row[A])[: n * k].reshape(n, k)
        drop(by_out, args[FIRST_EXAMPLE], row[BIAS], row[DETAIL], by_x, add)
