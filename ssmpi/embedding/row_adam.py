"""Adam of rows (Kingma and Ba, ICLR 2015), lazy: a step is one of the rows that were looked up, and leaves all others
as they are. So the means of a row are over its own gradients, and their bias is corrected by the number of its own
steps, which lies at the end of its state. FBGEMM does so with ``use_rowwise_bias_correction``. Without, and in
``torch.optim.SparseAdam``, all rows are corrected by the steps of the table: then a row that is first seen late begins
with a step of up to (1 - beta1) / sqrt(1 - beta2) times the rate, 3.2 with the defaults. A count of a row also needs no
agreement among threads, trainers and PSs, and moves with its row.
"""

from __future__ import annotations

import math

import numpy as np

from ssmpi.runtime.compiled.cache_lines import ask_for_row
from ssmpi.runtime.compiled.jit import njit
from ssmpi.runtime.optimizer_options import BETA1, BETA2, EPSILON


@njit(cache=True, nogil=True)
def adam(
    weights: np.ndarray, state: np.ndarray, rows: np.ndarray, gradients: np.ndarray, rate: float, numbers: np.ndarray
) -> None:
    """m += (1 - beta1) * (g - m); v += (1 - beta2) * (g^2 - v); w -= rate * m' / (sqrt(v') + epsilon), where m' = m /
    (1 - beta1^t) and v' = v / (1 - beta2^t). ``state`` (rows, 2 * width + 1) has m, v and t of each row.
    """
    width, (take, keep, add) = weights.shape[1], shares(numbers)
    for k in range(rows.shape[0]):
        r, step, scale = counted(weights, state, rows, k, rate, numbers)
        for j in range(width):
            g = gradients[k, j]
            mean = state[r, j] + take * (g - state[r, j])
            square = keep * state[r, width + j] + add * g * g
            state[r, j], state[r, width + j] = mean, square
            weights[r, j] -= step * mean / (np.sqrt(square) * scale + np.float32(numbers[EPSILON]))


@njit(cache=True, nogil=True)
def partial_rowwise_adam(
    weights: np.ndarray, state: np.ndarray, rows: np.ndarray, gradients: np.ndarray, rate: float, numbers: np.ndarray,
    vector: int,
) -> None:  # fmt: skip
    """As ``adam``, with one v for each group of columns, a mean of g^2 over them: the ``vector``, if it is not 0, and
    the first-order weight, if there is one. ``state`` (rows, width + groups + 1) has m, the v and t of each row.
    """
    width, (take, keep, add) = weights.shape[1], shares(numbers)
    for k in range(rows.shape[0]):
        r, step, scale = counted(weights, state, rows, k, rate, numbers)
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
                weights[r, j] -= step * mean / root


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
