"""The optimizers of rows, by name. An optimizer is a class with the state of a row and its initial value, a line in
``ROW_OPTIMIZERS``, and a line in ``update``, which compiled code calls.

The names are FBGEMM's. Only rows that are looked up move: their gradients, their state, and their decay. With
``table_decay`` all rows take every step of their table, which is lazy too: see that module.

Adam of rows (Kingma and Ba, ICLR 2015), lazy: a step is one of the rows that were looked up, and leaves all others
as they are. So the means of a row are over its own gradients, and their bias is corrected by the number of its own
steps, which lies at the end of its state. FBGEMM does so with ``use_rowwise_bias_correction``. Without, and in
``torch.optim.SparseAdam``, all rows are corrected by the steps of the table: then a row that is first seen late begins
with a step of up to (1 - beta1) / sqrt(1 - beta2) times the rate, 3.2 with the defaults. A count of a row also needs no
agreement among threads, trainers and PSs, and moves with its row.
"""

from __future__ import annotations

import math
from typing import ClassVar, Protocol

import numpy as np

from ssmpi.embedding.precision import narrow, row_key, second_key, widen
from ssmpi.runtime import optimizer_options
from ssmpi.runtime.compiled.cache_lines import ask_for_row
from ssmpi.runtime.compiled.jit import njit
from ssmpi.runtime.optimizer_options import (
    BETA1,
    BETA2,
    DECAY,
    DECOUPLED,
    EPSILON,
    KIND,
    RATE,
    SHRINK,
    OptimizerOptions,
)
from ssmpi.runtime.row_layout import RowLayout


class RowOptions(OptimizerOptions, Protocol):
    """The settings of an optimizer of rows."""

    @property
    def clip_value(self) -> float:
        """The most that an entry of a row's gradient may be, either way; 0 for any."""

    @property
    def table_decay(self) -> float:
        """As ``weight_decay``, in every step of a row's table."""


CLIP, VECTOR, TABLE_DECAY = range(SHRINK + 1, SHRINK + 4)  # further places in an optimizer's numbers


class RowOptimizer:
    """Updates rows of a layout. ``numbers`` float64 tell ``update`` what to do. Each row has ``floats`` float32 of
    state, all ``initial`` at first.
    """

    kind: ClassVar[int]
    floats = 0
    initial = 0.0

    def __init__(self, options: RowOptions, layout: RowLayout) -> None:
        common = optimizer_options.numbers(self.kind, options)
        self.numbers = np.array([*common, options.clip_value, layout.vector, options.table_decay])
        self.numbers[SHRINK if options.optimizer == DECOUPLED else DECAY] += options.table_decay  # of a row's own step


class RowSGD(RowOptimizer):
    """w -= rate * g."""

    kind = 0


class RowwiseAdagrad(RowOptimizer):
    """Adagrad with one accumulator for each group of columns: ``rowwise_adagrad``, ``grouped_adagrad``."""

    kind = 1

    def __init__(self, options: RowOptions, layout: RowLayout) -> None:
        super().__init__(options, layout)
        self.floats, self.initial = layout.groups, options.initial_state


class RowAdam(RowOptimizer):
    """``adam``: two means for each column, and a count of the row's steps. It is ``adamw`` too."""

    kind = 2

    def __init__(self, options: RowOptions, layout: RowLayout) -> None:
        super().__init__(options, layout)
        self.floats = 2 * layout.width + 1


class PartialRowwiseAdam(RowOptimizer):
    """``partial_rowwise_adam``: the mean of squares is one for each group of columns."""

    kind = 3

    def __init__(self, options: RowOptions, layout: RowLayout) -> None:
        super().__init__(options, layout)
        self.floats = layout.width + layout.groups + 1


ROW_OPTIMIZERS: dict[str, type[RowOptimizer]] = {
    "sgd": RowSGD, "rowwise_adagrad": RowwiseAdagrad, "adam": RowAdam, "adamw": RowAdam,
    "partial_rowwise_adam": PartialRowwiseAdam,
}  # fmt: skip
SGD, ADAGRAD, ADAM, PARTIAL_ADAM = RowSGD.kind, RowwiseAdagrad.kind, RowAdam.kind, PartialRowwiseAdam.kind


@njit(cache=True, nogil=True)
def update(
    numbers: np.ndarray, weights: np.ndarray, state: np.ndarray, rows: np.ndarray, gradients: np.ndarray, factor: float,
    push_number: int,
) -> None:  # fmt: skip
    """One step of unique ``rows`` int32 (n,) of ``weights`` (rows, width) and ``state`` (rows, floats) by ``gradients``
    (n, width), which are used up, at ``factor`` times the learning rate. ``push_number`` is what weights of 16 bits
    are rounded by (``precision``).
    """
    kind, rate = numbers[KIND], numbers[RATE] * factor
    if numbers[CLIP] > 0.0:
        clip(gradients, numbers[CLIP])
    if numbers[DECAY] > 0.0:
        add_decay(weights, rows, gradients, numbers[DECAY])
    if numbers[SHRINK] > 0.0:
        shrink(weights, rows, rate * numbers[SHRINK], push_number)
    if kind == SGD:
        sgd(weights, rows, gradients, rate, push_number)
    elif kind == ADAGRAD and state.shape[1] == 1:
        rowwise_adagrad(weights, state.reshape(state.size), rows, gradients, rate, numbers[EPSILON], push_number)
    elif kind == ADAGRAD:
        grouped_adagrad(weights, state, rows, gradients, rate, numbers[EPSILON], push_number)
    elif kind == ADAM:
        adam(weights, state, rows, gradients, rate, numbers, push_number)
    elif kind == PARTIAL_ADAM:
        partial_rowwise_adam(weights, state, rows, gradients, rate, numbers, int(numbers[VECTOR]), push_number)


@njit(cache=True, nogil=True)
def clip(gradients: np.ndarray, most: float) -> None:
    """Bring every entry into [-most, most], as ``torch.nn.utils.clip_grad_value_``; NaN stays NaN."""
    bound = np.float32(most)
    for k in range(gradients.shape[0]):
        for j in range(gradients.shape[1]):
            if gradients[k, j] > bound:
                gradients[k, j] = bound
            elif gradients[k, j] < -bound:
                gradients[k, j] = -bound


@njit(cache=True, nogil=True)
def add_decay(weights: np.ndarray, rows: np.ndarray, gradients: np.ndarray, decay: float) -> None:
    """gradients[k] += decay * weights[rows[k]]: that of decay / 2 times the squares of the weights."""
    factor = np.float32(decay)
    for k in range(rows.shape[0]):
        for j in range(weights.shape[1]):
            gradients[k, j] += factor * widen(weights[rows[k], j])


@njit(cache=True, nogil=True)
def shrink(weights: np.ndarray, rows: np.ndarray, share: float, push_number: int) -> None:
    """weights[rows[k]] *= 1 - share (decoupled weight decay; Loshchilov and Hutter, ICLR 2019)."""
    factor = np.float32(1.0 - share)
    for k in range(rows.shape[0]):
        r = rows[k]
        key = second_key(row_key(push_number, r))
        for j in range(weights.shape[1]):
            weights[r, j] = narrow(widen(weights[r, j]) * factor, weights[r, j], key, j)


@njit(cache=True, nogil=True)
def sgd(weights: np.ndarray, rows: np.ndarray, gradients: np.ndarray, rate: float, push_number: int) -> None:
    """weights[rows[k]] -= rate * gradients[k]. Lock-free: other threads may read meanwhile."""
    step = np.float32(rate)
    for k in range(rows.shape[0]):
        ask_for_row(weights, rows, k)
        r = rows[k]
        key = row_key(push_number, r)
        for j in range(weights.shape[1]):
            weights[r, j] = narrow(widen(weights[r, j]) - step * gradients[k, j], weights[r, j], key, j)


@njit(cache=True, nogil=True)
def rowwise_adagrad(
    weights: np.ndarray, state: np.ndarray, rows: np.ndarray, gradients: np.ndarray, rate: float, epsilon: float,
    push_number: int,
) -> None:  # fmt: skip
    """Adagrad with one accumulator per row: state += mean(g^2); w -= rate * g / (sqrt(state) + epsilon).

    Rows must be unique: sum the gradients of a row first, else it is updated once per occurrence.
    """
    sums = state.reshape(state.shape[0], 1)
    for k in range(rows.shape[0]):
        ask_for_row(weights, rows, k)
        ask_for_row(sums, rows, k)
        r = rows[k]
        key, square = row_key(push_number, r), np.float32(0.0)
        for j in range(weights.shape[1]):
            square += gradients[k, j] * gradients[k, j]
        state[r] += square / np.float32(weights.shape[1])
        step = np.float32(rate / (math.sqrt(state[r]) + epsilon))
        for j in range(weights.shape[1]):
            weights[r, j] = narrow(widen(weights[r, j]) - step * gradients[k, j], weights[r, j], key, j)


@njit(cache=True, nogil=True)
def grouped_adagrad(
    weights: np.ndarray, state: np.ndarray, rows: np.ndarray, gradients: np.ndarray, rate: float, epsilon: float,
    push_number: int,
) -> None:  # fmt: skip
    """As ``rowwise_adagrad`` with two accumulators per row, ``state`` (rows, 2): one for the last column, the
    first-order weight, and one for the columns before it, the vector.
    """
    vector = weights.shape[1] - 1
    for k in range(rows.shape[0]):
        ask_for_row(weights, rows, k)
        ask_for_row(state, rows, k)
        r = rows[k]
        key, square = row_key(push_number, r), np.float32(0.0)
        for j in range(vector):
            square += gradients[k, j] * gradients[k, j]
        state[r, 0] += square / np.float32(vector)
        step = np.float32(rate / (math.sqrt(state[r, 0]) + epsilon))
        for j in range(vector):
            weights[r, j] = narrow(widen(weights[r, j]) - step * gradients[k, j], weights[r, j], key, j)
        last = gradients[k, vector]
        state[r, 1] += last * last
        step = np.float32(rate / (math.sqrt(state[r, 1]) + epsilon))
        weights[r, vector] = narrow(widen(weights[r, vector]) - step * last, weights[r, vector], key, vector)


@njit(cache=True, nogil=True)
def adam(
    weights: np.ndarray, state: np.ndarray, rows: np.ndarray, gradients: np.ndarray, rate: float, numbers: np.ndarray,
    push_number: int,
) -> None:  # fmt: skip
    """m += (1 - beta1) * (g - m); v += (1 - beta2) * (g^2 - v); w -= rate * m' / (sqrt(v') + epsilon), where m' = m /
    (1 - beta1^t) and v' = v / (1 - beta2^t). ``state`` (rows, 2 * width + 1) has m, v and t of each row.
    """
    width, (take, keep, add) = weights.shape[1], shares(numbers)
    for k in range(rows.shape[0]):
        r, step, scale = counted(weights, state, rows, k, rate, numbers)
        key = row_key(push_number, r)
        for j in range(width):
            g = gradients[k, j]
            mean = state[r, j] + take * (g - state[r, j])
            square = keep * state[r, width + j] + add * g * g
            state[r, j], state[r, width + j] = mean, square
            value = widen(weights[r, j]) - step * mean / (np.sqrt(square) * scale + np.float32(numbers[EPSILON]))
            weights[r, j] = narrow(value, weights[r, j], key, j)


@njit(cache=True, nogil=True)
def partial_rowwise_adam(
    weights: np.ndarray, state: np.ndarray, rows: np.ndarray, gradients: np.ndarray, rate: float, numbers: np.ndarray,
    vector: int, push_number: int,
) -> None:  # fmt: skip
    """As ``adam``, with one v for each group of columns, a mean of g^2 over them: the ``vector``, if it is not 0, and
    the first-order weight, if there is one. ``state`` (rows, width + groups + 1) has m, the v and t of each row.
    """
    width, (take, keep, add) = weights.shape[1], shares(numbers)
    for k in range(rows.shape[0]):
        r, step, scale = counted(weights, state, rows, k, rate, numbers)
        key = row_key(push_number, r)
        group = width
        for first, last in ((0, vector), (vector, width)):
            if first == last:
                continue
            total = np.float32(0.0)
            for j in range(first, last):
                total += gradients[k, j] * gradients[k, j]
            square = keep * state[r, group] + add * (total / np.float32(last - first))
            state[r, group] = square
            group += 1
            root = np.sqrt(square) * scale + np.float32(numbers[EPSILON])
            for j in range(first, last):
                mean = state[r, j] + take * (gradients[k, j] - state[r, j])
                state[r, j] = mean
                weights[r, j] = narrow(widen(weights[r, j]) - step * mean / root, weights[r, j], key, j)


@njit(cache=True, nogil=True)
def shares(numbers: np.ndarray) -> tuple[np.float32, np.float32, np.float32]:
    """How much a step takes of a gradient into m, keeps of v, and adds of a square to v."""
    return np.float32(1.0 - numbers[BETA1]), np.float32(numbers[BETA2]), np.float32(1.0 - numbers[BETA2])


@njit(cache=True, nogil=True)
def counted(
    weights: np.ndarray, state: np.ndarray, rows: np.ndarray, k: int, rate: float, numbers: np.ndarray
) -> tuple[np.int32, np.float32, np.float32]:
    """Count a step of the row ``rows[k]``, at the end of its state, and ask for a later row. The row; the rate over the
    correction of m, and 1 over the root of that of v.
    """
    ask_for_row(weights, rows, k)
    ask_for_row(state, rows, k)
    r = rows[k]
    state[r, -1] += np.float32(1.0)  # stays at 2^24, where nothing is left to correct
    steps = np.float64(state[r, -1])
    by_mean, by_square = 1.0 - numbers[BETA1] ** steps, 1.0 - numbers[BETA2] ** steps
    return r, np.float32(rate / by_mean), np.float32(1.0 / math.sqrt(by_square))
