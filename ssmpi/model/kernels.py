"""The loops of a dense step between its matrix products, compiled and run without the GIL.

Each loop passes once over memory that a matrix product has just written; a chain of tensor operations would pass three
or four times. bfloat16 numbers are handled as uint16.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from ssmpi.runtime.compiled.jit import njit

VECTOR = 16  # words of 32 bits
PART = 1024  # floats
FARTHEST, LOG2_E = np.float32(87.0), np.float32(1.44269504)  # exp(87) and exp(-87) are normal numbers
LN2_HIGH, LN2_LOW = np.float32(0.693359375), np.float32(-2.12194440e-4)  # their sum is more exact than one number
C3, C4, C5, C6, C7 = map(np.float32, (0.16666665, 0.041665796, 0.0083334519, 0.0013981999, 0.00019875691))
SUMS = {"reassoc", "contract"}  # sums may be vectorised; NaN and infinity are preserved


@njit(cache=True, nogil=True, fastmath=SUMS)
def interact(x: np.ndarray, rows: np.ndarray, out: np.ndarray) -> None:
    """out (batch, dim + pairs) = x (batch, dim), then the dot product of every pair of the vectors x, rows[:, 0], ...

    rows (batch, features, dim). Pairs in the order of a lower triangle without its diagonal, row by row.
    """
    features, dim = rows.shape[1], rows.shape[2]
    for b in range(rows.shape[0]):
        for k in range(dim):
            out[b, k] = x[b, k]
        place = dim
        for i in range(features):
            product = np.float32(0.0)
            for k in range(dim):
                product += rows[b, i, k] * x[b, k]
            out[b, place] = product
            place += 1
            for j in range(i):
                product = np.float32(0.0)
                for k in range(dim):
                    product += rows[b, i, k] * rows[b, j, k]
                out[b, place] = product
                place += 1


@njit(cache=True, nogil=True, fastmath=SUMS)
def interact_backward(
    x: np.ndarray, rows: np.ndarray, by_out: np.ndarray, by_x: np.ndarray, by_rows: np.ndarray,
    add_x: bool, add_rows: bool,
) -> None:  # fmt: skip
    """From the gradient of ``interact``'s output to those of x and rows. ``add_x`` and ``add_rows`` accumulate instead
    of overwriting.
    """
    features, dim = rows.shape[1], rows.shape[2]
    vectors, gradients = np.empty((features + 1, dim), np.float32), np.empty((features + 1, dim), np.float32)
    for b in range(rows.shape[0]):
        for k in range(dim):
            vectors[0, k] = x[b, k]
            gradients[0, k] = by_out[b, k]
        for i in range(features):
            for k in range(dim):
                vectors[i + 1, k] = rows[b, i, k]
                gradients[i + 1, k] = 0.0
        place = dim
        for i in range(1, features + 1):
            for j in range(i):
                by_product = by_out[b, place]
                place += 1
                for k in range(dim):
                    gradients[i, k] += by_product * vectors[j, k]
                    gradients[j, k] += by_product * vectors[i, k]
        if add_x:
            for k in range(dim):
                gradients[0, k] += by_x[b, k]
        for k in range(dim):
            by_x[b, k] = gradients[0, k]
        for i in range(features):
            if add_rows:
                for k in range(dim):
                    gradients[i + 1, k] += by_rows[b, i, k]
            for k in range(dim):
                by_rows[b, i, k] = gradients[i + 1, k]


@njit(cache=True, nogil=True, fastmath={"contract"})
def gate(start: np.ndarray, update: np.ndarray, x: np.ndarray, out: np.ndarray) -> None:
    """out (size,) = start * update + x; the inputs may be longer."""
    for i in range(out.shape[0]):
        out[i] = start[i] * update[i] + x[i]


@njit(cache=True, nogil=True, fastmath={"contract"})
def multiply(gradient: np.ndarray, factor: np.ndarray, out: np.ndarray, add: bool) -> None:
    """out = gradient (size,) * factor, or out += it if ``add``; the other arrays may be longer."""
    if add:
        for i in range(gradient.shape[0]):
            out[i] += gradient[i] * factor[i]
    else:
        for i in range(gradient.shape[0]):
            out[i] = gradient[i] * factor[i]


@intrinsic
def move(typing: Any, source: Any, target: Any) -> Any:
    """Copy VECTOR words of 32 bits between two addresses, as one vector: so short a loop is not vectorised."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = ir.VectorType(ir.IntType(32), VECTOR).as_pointer()
        source, target = (builder.inttoptr(address, kind) for address in arguments)
        value = builder.load(source)
        value.align = 4
        builder.store(value, target).align = 4
        return context.get_dummy_value()

    return types.void(types.uintp, types.uintp), generate


@njit(cache=True, nogil=True)
def copy(values: np.ndarray, out: np.ndarray) -> None:
    """out[:size] = values (size,). A loop compiles in a tenth of the time of a slice assignment, which includes code
    for shape errors.
    """
    for i in range(values.shape[0]):
        out[i] = values[i]


@njit(cache=True, nogil=True)
def hand_on(
    values: np.ndarray, rows: int, width: int, across: int, out: np.ndarray, beside: int, add: bool
) -> None:  # fmt: skip
    """out (rows, width) = values (rows, width), or += if ``add``; both flat, with strides of ``beside`` and ``across``
    floats from row to row.
    """
    whole = 0 if add else width - width % VECTOR
    for row in range(rows):
        given, target = values[row * across :], out[row * beside :]
        source, place = given.ctypes.data, target.ctypes.data
        for k in range(0, whole, VECTOR):
            move(np.uintp(source + 4 * k), np.uintp(place + 4 * k))  # type: ignore[call-arg]
        if add:
            for k in range(width):
                target[k] += given[k]
        else:
            for k in range(whole, width):
                target[k] = given[k]


@njit(cache=True, nogil=True)
def gate_backward(
    by_out: np.ndarray, start: np.ndarray, update: np.ndarray, by_start: np.ndarray, by_update: np.ndarray,
    by_x: np.ndarray, wanted: tuple[bool, bool, bool], add: tuple[bool, bool, bool],
) -> None:  # fmt: skip
    """From the gradient of ``gate``'s output (size,) to those of start, update and x that are ``wanted``; ``add``
    accumulates instead of overwriting. Works in parts that fit the L1 cache; two of the three may be the same value.
    """
    for first in range(0, by_out.shape[0], PART):
        gradient = by_out[first : first + PART]
        if wanted[2]:
            hand_on(gradient, 1, gradient.size, 0, by_x[first:], 0, add[2])
        if wanted[1]:
            multiply(gradient, start[first:], by_update[first:], add[1])
        if wanted[0]:
            multiply(gradient, update[first:], by_start[first:], add[0])


@njit(cache=True, nogil=True)
def relu(values: np.ndarray) -> None:
    """values (size,) = max(values, 0); NaN stays."""
    for i in range(values.shape[0]):
        values[i] = np.float32(0.0) if values[i] < 0.0 else values[i]


@njit(cache=True, nogil=True, fastmath={"contract"}, error_model="numpy")  # a check for zero would keep it scalar
def sigmoid(values: np.ndarray) -> None:
    """values (size,) = 1 / (1 + exp(-values)), within 1e-7: exp(t) = 2^n exp(r) with |r| < 0.35, whose exponential is a
    polynomial (that of Cephes). ``math.exp`` is not vectorised and takes 16 times as long.
    """
    powers = values.view(np.int32)  # 2^n, made from its exponent, is kept where the result will be
    for i in range(values.shape[0]):
        t = min(max(-values[i], -FARTHEST), FARTHEST)
        n = np.floor(t * LOG2_E + np.float32(0.5))
        r = t - n * LN2_HIGH - n * LN2_LOW
        tail = C3 + r * (C4 + r * (C5 + r * (C6 + r * C7)))
        exponential = np.float32(1.0) + r + r * r * (np.float32(0.5) + r * tail)
        powers[i] = (np.int32(n) + 127) << 23
        values[i] = np.float32(1.0) / (np.float32(1.0) + exponential * values[i])


@njit(cache=True, nogil=True)
def sigmoid_backward(gradient: np.ndarray, output: np.ndarray) -> None:
    """gradient (size,) *= output (1 - output)."""
    for i in range(gradient.shape[0]):
        gradient[i] *= output[i] * (np.float32(1.0) - output[i])


@njit(cache=True, nogil=True)
def by_logits(logits: np.ndarray, labels: np.ndarray, count: int, out: np.ndarray) -> None:
    """out = (sigmoid(logits) - labels) / count: the gradient of the mean log-loss over ``count`` examples."""
    for i in range(logits.shape[0]):
        out[i] = np.float32((1.0 / (1.0 + math.exp(-np.float64(logits[i]))) - labels[i]) / count)


@njit(cache=True, nogil=True)
def add_bias(output: np.ndarray, bias: np.ndarray, rows: int, across: int, relu: bool) -> None:
    """output (rows, n) += bias (n,), then max(output, 0) if ``relu``; NaN stays. ``output`` is flat, with a stride of
    ``across`` floats from row to row.
    """
    n = bias.shape[0]
    for i in range(rows):
        line = output[i * across : i * across + n]
        for j in range(n):
            value = line[j] + bias[j]
            line[j] = np.float32(0.0) if relu and value < 0.0 else value


@njit(cache=True, nogil=True, fastmath=SUMS)
def relu_backward(gradient: np.ndarray, output: np.ndarray, by_bias: np.ndarray, fresh: bool) -> None:
    """Set gradient (batch, n) to 0 where the ReLU's output is 0, and write its sum over the batch to ``by_bias`` (n,):
    accumulated unless ``fresh``.
    """
    if fresh:
        by_bias[:] = 0.0
    for i in range(gradient.shape[0]):
        for j in range(gradient.shape[1]):
            value = np.float32(0.0) if output[i, j] <= 0.0 else gradient[i, j]
            gradient[i, j] = value
            by_bias[j] += value


@njit(cache=True, nogil=True, fastmath=SUMS)
def column_sums(values: np.ndarray, out: np.ndarray, fresh: bool) -> None:
    """out (n,) = sum of values (batch, n) over the batch, accumulated unless ``fresh``."""
    if fresh:
        out[:] = 0.0
    for i in range(values.shape[0]):
        for j in range(values.shape[1]):
            out[j] += values[i, j]


@njit(cache=True, nogil=True, fastmath={"contract"})
def sgd(weights: np.ndarray, gradient: np.ndarray, rate: float, decay: float) -> None:
    """w -= rate * (g + decay * w), both (parameters,)."""
    step, share = np.float32(rate), np.float32(decay)
    for i in range(weights.shape[0]):
        weights[i] -= step * (gradient[i] + share * weights[i])


@njit(cache=True, nogil=True, fastmath={"contract"}, error_model="numpy")  # a check for zero would keep it scalar
def adagrad(weights: np.ndarray, gradient: np.ndarray, state: np.ndarray, numbers: tuple[float, float, float]) -> None:
    """g' = g + decay * w; state += g'^2; w -= rate * g' / (sqrt(state) + epsilon), all (parameters,), in one pass;
    ``numbers`` are rate, epsilon and decay.
    """
    step, floor, share = np.float32(numbers[0]), np.float32(numbers[1]), np.float32(numbers[2])
    for i in range(weights.shape[0]):
        g = gradient[i] + share * weights[i]
        s = state[i] + g * g
        state[i] = s
        weights[i] -= step * g / (np.sqrt(s) + floor)


@njit(cache=True, nogil=True, fastmath={"contract"}, error_model="numpy")
def adam(weights: np.ndarray, gradient: np.ndarray, first: np.ndarray, second: np.ndarray, numbers: np.ndarray) -> None:
    """g' = g + decay * w; m += (1 - beta1) * (g' - m); v = beta2 * v + (1 - beta2) * g'^2;
    w = shrink * w - step * m / (sqrt(v) * scale + epsilon), in one pass. ``first`` is m, ``second`` v; ``numbers`` are
    epsilon, beta1, beta2, decay, shrink, step and scale.
    """
    take, keep, add = np.float32(1.0 - numbers[1]), np.float32(numbers[2]), np.float32(1.0 - numbers[2])
    share, shrink, floor = np.float32(numbers[3]), np.float32(numbers[4]), np.float32(numbers[0])
    step, scale = np.float32(numbers[5]), np.float32(numbers[6])
    for i in range(weights.shape[0]):
        g = gradient[i] + share * weights[i]
        m = first[i] + take * (g - first[i])
        v = keep * second[i] + add * (g * g)
        first[i], second[i] = m, v
        weights[i] = shrink * weights[i] - step * m / (np.sqrt(v) * scale + floor)


@njit(cache=True, nogil=True, fastmath=SUMS)
def clip_norm(gradient: np.ndarray, most: float) -> None:
    """Scale a gradient (parameters,) whose norm is larger to that of ``most``, as ``torch.nn.utils.clip_grad_norm_``;
    one that is not finite becomes NaN.
    """
    total = np.float64(0.0)
    for i in range(gradient.shape[0]):
        total += np.float64(gradient[i]) * np.float64(gradient[i])
    share = most / (math.sqrt(total) + 1e-6)
    if not share >= 1.0:
        factor = np.float32(share)
        for i in range(gradient.shape[0]):
            gradient[i] *= factor
