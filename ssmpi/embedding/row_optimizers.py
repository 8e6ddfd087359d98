"""The optimizers of rows, by name. An optimizer is a class with the state of a row and its initial value, a line in
``ROW_OPTIMIZERS``, and a line in ``update``, which compiled code calls.

The names are FBGEMM's. Only rows that are looked up move: their gradients, their state, and their decay.
"""

from __future__ import annotations

from typing import ClassVar, Protocol

import numpy as np

from ssmpi.embedding.kernels import grouped_adagrad, rowwise_adagrad, sgd
from ssmpi.embedding.row_adam import adam, partial_rowwise_adam
from ssmpi.runtime import optimizer_options
from ssmpi.runtime.compiled.jit import njit
from ssmpi.runtime.optimizer_options import DECAY, EPSILON, KIND, RATE, SHRINK, OptimizerOptions
from ssmpi.runtime.row_layout import RowLayout


class RowOptions(OptimizerOptions, Protocol):
    """The settings of an optimizer of rows."""

    @property
    def clip_value(self) -> float:
        """The most that an entry of a row's gradient may be, either way; 0 for any."""


CLIP, VECTOR = SHRINK + 1, SHRINK + 2  # further places in an optimizer's numbers


class RowOptimizer:
    """Updates rows of a layout. ``numbers`` float64 tell ``update`` what to do. Each row has ``floats`` float32 of
    state, all ``initial`` at first.
    """

    kind: ClassVar[int]
    floats = 0
    initial = 0.0

    def __init__(self, options: RowOptions, layout: RowLayout) -> None:
        common = optimizer_options.numbers(self.kind, options)
        self.numbers = np.array([*common, options.clip_value, layout.vector])


class RowSGD(RowOptimizer):
    """w -= rate * g."""

    kind = 0


class RowwiseAdagrad(RowOptimizer):
    """Adagrad with one accumulator for each group of columns: ``kernels.rowwise_adagrad``, ``grouped_adagrad``."""

    kind = 1

    def __init__(self, options: RowOptions, layout: RowLayout) -> None:
        super().__init__(options, layout)
        self.floats, self.initial = layout.groups, options.initial_state


class RowAdam(RowOptimizer):
    """``row_adam.adam``: two means for each column, and a count of the row's steps. It is ``adamw`` too."""

    kind = 2

    def __init__(self, options: RowOptions, layout: RowLayout) -> None:
        super().__init__(options, layout)
        self.floats = 2 * layout.width + 1


class PartialRowwiseAdam(RowOptimizer):
    """``row_adam.partial_rowwise_adam``: the mean of squares is one for each group of columns."""

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
    numbers: np.ndarray, weights: np.ndarray, state: np.ndarray, rows: np.ndarray, gradients: np.ndarray, factor: float
) -> None:
    """One step of unique ``rows`` int32 (n,) of ``weights`` (rows, width) and ``state`` (rows, floats) by ``gradients``
    (n, width), which are used up, at ``factor`` times the learning rate.
    """
    kind, rate = numbers[KIND], numbers[RATE] * factor
    if numbers[CLIP] > 0.0:
        clip(gradients, numbers[CLIP])
    if numbers[DECAY] > 0.0:
        add_decay(weights, rows, gradients, numbers[DECAY])
    if numbers[SHRINK] > 0.0:
        shrink(weights, rows, rate * numbers[SHRINK])
    if kind == SGD:
        sgd(weights, rows, gradients, rate)
    elif kind == ADAGRAD and state.shape[1] == 1:
        rowwise_adagrad(weights, state.reshape(state.size), rows, gradients, rate, numbers[EPSILON])
    elif kind == ADAGRAD:
        grouped_adagrad(weights, state, rows, gradients, rate, numbers[EPSILON])
    elif kind == ADAM:
        adam(weights, state, rows, gradients, rate, numbers)
    elif kind == PARTIAL_ADAM:
        partial_rowwise_adam(weights, state, rows, gradients, rate, numbers, int(numbers[VECTOR]))


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
            gradients[k, j] += factor * weights[rows[k], j]


@njit(cache=True, nogil=True)
def shrink(weights: np.ndarray, rows: np.ndarray, share: float) -> None:
    """weights[rows[k]] *= 1 - share (decoupled weight decay; Loshchilov and Hutter, ICLR 2019)."""
    factor = np.float32(1.0 - share)
    for k in range(rows.shape[0]):
        for j in range(weights.shape[1]):
            weights[rows[k], j] *= factor
