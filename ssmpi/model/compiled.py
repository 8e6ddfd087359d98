"""DLRM's float32 step as one compiled call: forward and backward of a batch without the interpreter, its lock or torch.

With 24 threads in a process, a step of some thirty calls stands in line for the lock. Here products are BLAS's, loops
between them pass once over what a product has just written, and everything lies in two buffers that stay in cache.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numba import njit

from ssmpi.model import blas, kernels
from ssmpi.model.layers import PIECE


class CompiledStep:
    """``step(dense, rows, labels)``: logits and gradients by rows, as ``ThreadModel.forward_backward`` gives them.

    To be made on the thread that calls it. ``bottom`` and ``top`` are the widths of the MLPs, input first. ``weights``
    and ``gradients`` are flat: for every linear layer, bottom to top, its weight (n, k) and its bias (n,).
    """

    def __init__(
        self, bottom: Sequence[int], top: Sequence[int], weights: np.ndarray, gradients: np.ndarray, sgemm: int
    ) -> None:
        torch.set_num_threads(1)  # BLAS would start a team for each product; OpenMP keeps this by thread
        self._sgemm, self._weights, self._gradients = sgemm, weights, gradients
        self._bottom, self._top = np.array(bottom), np.array(top)
        self._values, self._by_values = (
            np.empty((2, PIECE * max(self._bottom.sum(), self._top.sum())), np.float32) for _ in range(2)
        )
        self._logits, self._by_rows = np.empty(0, np.float32), np.empty(0, np.float32)

    def __call__(self, dense: np.ndarray, rows: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """What it returns is valid until the next call."""
        count = len(labels)
        if rows.size > self._by_rows.size:
            self._logits, self._by_rows = np.empty(count, np.float32), np.empty_like(rows)
        logits, by_rows = self._logits[:count], self._by_rows[:count]
        _step(
            self._sgemm, self._weights, self._gradients, self._bottom, self._top, dense, rows, labels,
            self._values, self._by_values, logits, by_rows,
        )  # fmt: skip
        return logits, by_rows


@njit(cache=True, nogil=True)
def _step(
    sgemm: int, weights: np.ndarray, gradients: np.ndarray, bottom: np.ndarray, top: np.ndarray,
    dense: np.ndarray, rows: np.ndarray, labels: np.ndarray,
    values: np.ndarray, by_values: np.ndarray, logits: np.ndarray, by_rows: np.ndarray,
) -> None:  # fmt: skip
    """The batch in pieces: what a layer writes is in cache when the next one reads it."""
    count = len(labels)
    size = -(-count // -(-count // PIECE))
    for start in range(0, count, size):
        end = min(start + size, count)
        n, fresh = end - start, start == 0
        first, last = bottom[0], bottom[-1]
        values[0, : n * first] = dense[start:end].ravel()
        middle = _forward(sgemm, weights, 0, bottom, n, values[0], True)
        at = n * (bottom.sum() - last)
        x, by_x = values[0, at : at + n * last].reshape(n, last), by_values[0, at : at + n * last].reshape(n, last)
        kernels.interact(x, rows[start:end], values[1, : n * top[0]].reshape(n, top[0]))
        whole = _forward(sgemm, weights, middle, top, n, values[1], False)
        at = n * (top.sum() - 1)
        logits[start:end] = values[1, at : at + n]
        kernels.by_logits(logits[start:end], labels[start:end], count, by_values[1, at : at + n])
        _backward(sgemm, weights, gradients, whole, top, n, values[1], by_values[1], False, fresh)
        by_pairs = by_values[1, : n * top[0]].reshape(n, top[0])
        kernels.interact_backward(x, rows[start:end], by_pairs, by_x, by_rows[start:end])
        _backward(sgemm, weights, gradients, middle, bottom, n, values[0], by_values[0], True, fresh)


@njit(cache=True, nogil=True)
def _forward(
    sgemm: int, weights: np.ndarray, place: int, sizes: np.ndarray, n: int, values: np.ndarray, relu: bool
) -> int:
    """From the layers' input, which stands first in ``values``, to the output of each behind it; ``relu``: of the last
    one too.

    ``place`` is where the parameters begin; returns where they end.
    """
    at, last = 0, len(sizes) - 2
    for layer in range(last + 1):
        inputs, outputs = sizes[layer], sizes[layer + 1]
        bias = place + outputs * inputs
        after = at + n * inputs
        blas.outputs(sgemm, values[at:], weights[place:], values[after:], n, outputs, inputs)
        kernels.add_bias(
            values[after : after + n * outputs].reshape(n, outputs),
            weights[bias : bias + outputs],
            relu or layer < last,
        )
        at, place = after, bias + outputs
    return place


@njit(cache=True, nogil=True)
def _backward(
    sgemm: int, weights: np.ndarray, gradients: np.ndarray, place: int, sizes: np.ndarray,
    n: int, values: np.ndarray, by_values: np.ndarray, bottom: bool, fresh: bool,
) -> None:  # fmt: skip
    """From the gradient by the last output, which stands last in ``by_values``, to those by parameters, added unless
    ``fresh``, and by the input, except at the ``bottom``, whose last layer has a ReLU. ``place`` is where the
    parameters end.
    """
    at, last = n * sizes.sum(), len(sizes) - 2
    for layer in range(last, -1, -1):
        inputs, outputs = sizes[layer], sizes[layer + 1]
        after = at - n * outputs
        bias = place - outputs
        place = bias - outputs * inputs
        by_output = by_values[after:at].reshape(n, outputs)
        if bottom or layer < last:
            kernels.relu_backward(
                by_output, values[after:at].reshape(n, outputs), gradients[bias : bias + outputs], fresh
            )
        else:
            kernels.column_sums(by_output, gradients[bias : bias + outputs], fresh)
        before = after - n * inputs
        blas.by_weight(sgemm, by_values[after:], values[before:], gradients[place:], n, outputs, inputs, fresh)
        if layer > 0 or not bottom:
            blas.by_values(sgemm, by_values[after:], weights[place:], by_values[before:], n, outputs, inputs)
        at = after
