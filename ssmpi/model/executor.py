"""Walks a program: forward and backward of a batch without the interpreter, its lock or torch.

With 24 threads in a process, a step of some thirty calls stands in line for the lock. Here products are BLAS's, loops
between them pass once over what a product has just written, and everything lies in two buffers that stay in cache. No
kernel knows a network.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from ssmpi.model import blas, blocks, brgemm, kernels, products
from ssmpi.model.products import Products
from ssmpi.model.program import (
    ADD_A,
    ADD_B,
    ADD_C,
    BIAS,
    BY_A,
    BY_B,
    BY_C,
    COPY,
    DETAIL,
    FLAGS,
    GATE,
    HALF,
    INPUTS,
    INTERACTION,
    KIND,
    LINEAR,
    OUT,
    OUTPUTS,
    RELU,
    ROWS_PLACE,
    SIGMOID,
    WEIGHT,
    A,
    B,
    C,
    Program,
)  # fmt: skip

PIECE = 512  # examples: measured best of 128 to 2048 on 1 MB of second-level cache a core


def pieces(count: int) -> list[tuple[int, int]]:
    """A batch of ``count`` cut into as few pieces of at most PIECE as there can be, of equal size but for one."""
    size = -(-count // max(1, -(-count // PIECE)))
    return [(start, min(start + size, count)) for start in range(0, count, max(1, size))]


class Results:
    """Room for what a step returns, which stays: it is valid until the next step."""

    def __init__(self) -> None:
        self._logits, self._by_rows = np.empty(0, np.float32), np.empty(0, np.float32)

    def of(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Logits float32 (batch,) and gradients by ``rows``, float32 (batch, tables, dim), to be filled."""
        if rows.size > self._by_rows.size:
            self._logits, self._by_rows = np.empty(len(rows), np.float32), np.empty_like(rows)
        return self._logits[: len(rows)], self._by_rows[: len(rows)]


class CompiledStep:
    """``step(dense, rows, labels)``: logits and gradients by rows, as ``ThreadModel.forward_backward`` gives them.

    To be made on the thread that calls it. ``weights`` and ``gradients`` float32 (parameters,), as the network lays
    them out; ``sgemm`` is BLAS's by address, ``kernels`` are oneDNN's to be used in its place, in bfloat16 at least.
    """

    def __init__(
        self, program: Program, weights: np.ndarray, gradients: np.ndarray, sgemm: int,
        kernels: brgemm.Kernels = brgemm.NONE,
    ) -> None:  # fmt: skip
        blas.use_one_thread()
        self._products = Products(sgemm, blocks.operands(kernels, program.layers, PIECE))
        self._table, self._weights, self._gradients = program.table, weights, gradients
        self._values, self._by_values = np.empty((2, PIECE * program.floats), np.float32)
        self._results = Results()

    def __call__(self, dense: np.ndarray, rows: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """What it returns is valid until the next call."""
        logits, by_rows = self._results.of(rows)
        _step(
            self._products, self._table, self._weights, self._gradients, self._values, self._by_values,
            dense, rows.reshape(-1), labels, logits, by_rows.reshape(-1),
        )  # fmt: skip
        return logits, by_rows

    def score(self, dense: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Logits float32 (batch,), without gradients."""
        logits = np.empty(len(dense), np.float32)
        _score(
            self._products, self._table, self._weights, self._gradients, self._values, self._by_values,
            dense, rows.reshape(-1), logits,
        )  # fmt: skip
        return logits


@njit(cache=True, nogil=True)
def _step(
    by: Products, table: np.ndarray, weights: np.ndarray, gradients: np.ndarray, values: np.ndarray,
    by_values: np.ndarray, dense: np.ndarray, rows: np.ndarray, labels: np.ndarray, logits: np.ndarray,
    by_rows: np.ndarray,
) -> None:  # fmt: skip
    """The batch in pieces: what an instruction writes is in cache when the next one reads it."""
    count = len(labels)
    if not count:
        gradients[:] = 0.0
        return
    _refresh(by, table, weights)
    size, width, logit, end = -(-count // -(-count // PIECE)), rows.size // count, table[-1, OUT], len(table)
    for start in range(0, count, size):
        stop = min(start + size, count)
        n, fresh = stop - start, start == 0
        own, by_own = rows[start * width : stop * width], by_rows[start * width : stop * width]
        values[: n * dense.shape[1]] = dense[start:stop].ravel()
        run(by, table, 0, end, False, n, fresh, weights, gradients, values, by_values, own, by_own)
        logits[start:stop] = values[n * logit : n * logit + n]
        kernels.by_logits(logits[start:stop], labels[start:stop], count, by_values[n * logit : n * logit + n])
        run(by, table, 0, end, True, n, fresh, weights, gradients, values, by_values, own, by_own)
    brgemm.release(by.operands.kernels)


@njit(cache=True, nogil=True)
def _refresh(by: Products, table: np.ndarray, weights: np.ndarray) -> None:
    """Lay out the weights as they are now, once a step."""
    for row in table:
        if row[KIND] == LINEAR:
            half, wanted = row[FLAGS] & HALF != 0, row[FLAGS] & BY_A != 0
            products.refresh(by, half, row[DETAIL], weights[row[WEIGHT] :], row[OUTPUTS], row[INPUTS], wanted)


@njit(cache=True, nogil=True)
def _score(
    by: Products, table: np.ndarray, weights: np.ndarray, gradients: np.ndarray, values: np.ndarray,
    by_values: np.ndarray, dense: np.ndarray, rows: np.ndarray, logits: np.ndarray,
) -> None:  # fmt: skip
    count = len(logits)
    if not count:
        return
    _refresh(by, table, weights)
    width, logit = rows.size // count, table[-1, OUT]
    for start in range(0, count, PIECE):
        stop = min(start + PIECE, count)
        n, own = stop - start, rows[start * width : stop * width]
        values[: n * dense.shape[1]] = dense[start:stop].ravel()
        run(by, table, 0, len(table), False, n, True, weights, gradients, values, by_values, own, own)
        logits[start:stop] = values[n * logit : n * logit + n]


@njit(cache=True, nogil=True)
def run(
    by: Products, table: np.ndarray, first: int, last: int, backward: bool, n: int, fresh: bool,
    weights: np.ndarray, gradients: np.ndarray, values: np.ndarray, by_values: np.ndarray,
    rows: np.ndarray, by_rows: np.ndarray,
) -> None:  # fmt: skip
    """Instructions ``first`` to ``last`` - 1 over ``n`` examples, or, ``backward``, their gradients in reverse order.

    All arrays are flat. The gradients by parameters are added to what is there unless ``fresh``.
    """
    if backward:
        for step in range(last - 1, first - 1, -1):
            _backward(by, table[step], n, fresh, weights, gradients, values, by_values, rows, by_rows)
    else:
        for step in range(first, last):
            _forward(by, table[step], n, weights, values, rows)


@njit(cache=True, nogil=True)
def _place(place: int, n: int, values: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Where a value of ``n`` examples begins."""
    return rows if place == ROWS_PLACE else values[n * place :]


@njit(cache=True, nogil=True)
def _forward(by: Products, row: np.ndarray, n: int, weights: np.ndarray, values: np.ndarray, rows: np.ndarray) -> None:
    kind, k, m = row[KIND], row[INPUTS], row[OUTPUTS]
    a, flat = _place(row[A], n, values, rows), values[n * row[OUT] : n * (row[OUT] + m)]
    out = flat.reshape(n, m)
    if kind == LINEAR:
        products.outputs(by, row[FLAGS] & HALF != 0, row[DETAIL], a, weights[row[WEIGHT] :], flat, n, m, k)
        if row[BIAS] >= 0:
            kernels.add_bias(out, weights[row[BIAS] : row[BIAS] + m], row[FLAGS] & RELU != 0)
        elif row[FLAGS] & RELU:
            kernels.relu(flat)
        if row[FLAGS] & SIGMOID:
            kernels.sigmoid(flat)
    elif kind == INTERACTION:
        kernels.interact(a[: n * k].reshape(n, k), rows.reshape(n, row[DETAIL], k), out)
    elif kind == COPY:
        out[:, row[DETAIL] : row[DETAIL] + k] = a[: n * k].reshape(n, k)
    elif kind == GATE:
        kernels.gate(a, _place(row[B], n, values, rows), _place(row[C], n, values, rows), flat)


@njit(cache=True, nogil=True)
def _backward(
    by: Products, row: np.ndarray, n: int, fresh: bool, weights: np.ndarray, gradients: np.ndarray,
    values: np.ndarray, by_values: np.ndarray, rows: np.ndarray, by_rows: np.ndarray,
) -> None:  # fmt: skip
    """From the gradient by an instruction's output to those by its inputs and parameters."""
    kind, k, m, flags = row[KIND], row[INPUTS], row[OUTPUTS], row[FLAGS]
    place = n * row[OUT]
    a, by_a = _place(row[A], n, values, rows), _place(row[A], n, by_values, by_rows)
    flat = by_values[place : place + n * m]
    by_out = flat.reshape(n, m)
    if kind == LINEAR:
        bias = row[BIAS]
        by_bias = gradients[bias : bias + m] if bias >= 0 else np.empty(m, np.float32)
        if flags & RELU:
            kernels.relu_backward(by_out, values[place : place + n * m].reshape(n, m), by_bias, fresh)
        else:
            if flags & SIGMOID:
                kernels.sigmoid_backward(flat, values[place : place + n * m])
            kernels.column_sums(by_out, by_bias, fresh)
        half, by_matrix = flags & HALF != 0, gradients[row[WEIGHT] :]
        products.by_weight(by, half, flat, a, by_matrix, n, m, k, fresh)
        if flags & BY_A:
            matrix, alone = weights[row[WEIGHT] :], flags & ADD_A == 0
            products.by_values(by, half, row[DETAIL], flat, matrix, by_a, n, m, k, alone)
    elif kind == INTERACTION:
        vectors, by_vectors = rows.reshape(n, row[DETAIL], k), by_rows.reshape(n, row[DETAIL], k)
        x, by_x = a[: n * k].reshape(n, k), by_a[: n * k].reshape(n, k)
        kernels.interact_backward(x, vectors, by_out, by_x, by_vectors, flags & ADD_A != 0, flags & ADD_B != 0)
    elif kind == COPY and flags & BY_A:
        kernels.hand_on(by_out[:, row[DETAIL] : row[DETAIL] + k], by_a[: n * k].reshape(n, k), flags & ADD_A != 0)
    elif kind == GATE:
        b, by_b = _place(row[B], n, values, rows), _place(row[B], n, by_values, by_rows)
        by_c = _place(row[C], n, by_values, by_rows)
        if flags & BY_C:
            kernels.hand_on(by_out, by_c[: n * k].reshape(n, k), flags & ADD_C != 0)
        if flags & BY_B:
            kernels.multiply(flat, a, by_b, flags & ADD_B != 0)
        if flags & BY_A:
            kernels.multiply(flat, b, by_a, flags & ADD_A != 0)
