"""Walks a program: forward and backward of a batch without the interpreter, its lock or torch.

With 24 threads in a process, a step of some thirty calls stands in line for the lock. Here products are BLAS's, loops
between them pass once over what a product has just written, and everything lies in two buffers that stay in cache. No
kernel knows a network.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from ssmpi.model import blas, blocks, brgemm, kernels, products
from ssmpi.model.instructions import run
from ssmpi.model.products import Products
from ssmpi.model.program import BY_A, DETAIL, FLAGS, HALF, INPUTS, KIND, LINEAR, OUT, OUTPUTS, WEIGHT, Program

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
        """Logits float32 (batch,) and gradients by ``rows``, float32 (batch, tables, width), to be filled."""
        if rows.size > self._by_rows.size or rows.shape[1:] != self._by_rows.shape[1:]:
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
    by = _refreshed(by, count > PIECE, table, weights)
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
def _refreshed(by: Products, several: bool, table: np.ndarray, weights: np.ndarray) -> Products:
    """With the weights as they are now laid out, once a step; those in float32 only for ``several`` pieces: a single
    one is faster if each part is laid out when it is read.
    """
    by = Products(by.sgemm, by.operands, several and by.operands.kernels.single != 0)
    for row in table:
        if row[KIND] == LINEAR:
            half, wanted = row[FLAGS] & HALF != 0, row[FLAGS] & BY_A != 0
            products.refresh(by, half, row[DETAIL], weights[row[WEIGHT] :], row[OUTPUTS], row[INPUTS], wanted)
    return by


@njit(cache=True, nogil=True)
def _score(
    by: Products, table: np.ndarray, weights: np.ndarray, gradients: np.ndarray, values: np.ndarray,
    by_values: np.ndarray, dense: np.ndarray, rows: np.ndarray, logits: np.ndarray,
) -> None:  # fmt: skip
    count = len(logits)
    if not count:
        return
    by = _refreshed(by, count > PIECE, table, weights)
    width, logit = rows.size // count, table[-1, OUT]
    for start in range(0, count, PIECE):
        stop = min(start + PIECE, count)
        n, own = stop - start, rows[start * width : stop * width]
        values[: n * dense.shape[1]] = dense[start:stop].ravel()
        run(by, table, 0, len(table), False, n, True, weights, gradients, values, by_values, own, own)
        logits[start:stop] = values[n * logit : n * logit + n]
