"""How rows are updated, by name. An optimizer is a class, which says what state a row has and how it begins, a line in
``ROW_OPTIMIZERS``, and a line in ``update``, which compiled code calls.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from ssmpi.compiled.jit import njit
from ssmpi.core.optimizer_options import OptimizerOptions
from ssmpi.core.row_layout import RowLayout
from ssmpi.embedding.kernels import grouped_adagrad, rowwise_adagrad, sgd

KIND, RATE, EPSILON = range(3)  # places in an optimizer's ``numbers``


class RowOptimizer:
    """Updates rows of a layout. ``numbers`` float64 tell ``update`` what to do. Each row has ``floats`` float32 of
    state, all ``initial`` at first.
    """

    kind: ClassVar[int]
    floats = 0
    initial = 0.0

    def __init__(self, options: OptimizerOptions, layout: RowLayout) -> None:
        self.numbers = np.array([self.kind, options.rate, options.epsilon])


class RowSGD(RowOptimizer):
    """w -= rate * g."""

    kind = 0


class RowwiseAdagrad(RowOptimizer):
    """Adagrad with one accumulator for each group of columns: ``kernels.rowwise_adagrad``, ``grouped_adagrad``."""

    kind = 1

    def __init__(self, options: OptimizerOptions, layout: RowLayout) -> None:
        super().__init__(options, layout)
        self.floats, self.initial = layout.groups, options.initial_state


ROW_OPTIMIZERS: dict[str, type[RowOptimizer]] = {"sgd": RowSGD, "rowwise_adagrad": RowwiseAdagrad}
SGD, ADAGRAD = RowSGD.kind, RowwiseAdagrad.kind  # as compiled code needs them


@njit(cache=True, nogil=True)
def update(
    numbers: np.ndarray, weights: np.ndarray, state: np.ndarray, rows: np.ndarray, gradients: np.ndarray, factor: float
) -> None:
    """One step of unique ``rows`` int32 (n,) of ``weights`` (rows, width) and ``state`` (rows, floats) by ``gradients``
    (n, width), at ``factor`` times the learning rate.
    """
    kind, rate = numbers[KIND], numbers[RATE] * factor
    if kind == SGD:
        sgd(weights, rows, gradients, rate)
    elif kind == ADAGRAD and state.shape[1] == 1:
        rowwise_adagrad(weights, state.reshape(state.size), rows, gradients, rate, numbers[EPSILON])
    elif kind == ADAGRAD:
        grouped_adagrad(weights, state, rows, gradients, rate, numbers[EPSILON])
