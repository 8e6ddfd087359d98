"""Walks a program: forward and backward of a batch without the interpreter, its lock or torch.

With 24 threads in a process, a step of some thirty calls stands in line for the lock. Here products are BLAS's, loops
between them pass once over what a product has just written, and everything lies in two buffers that stay in cache. No
kernel knows a network.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from ssmpi.core.aligned import aligned
from ssmpi.core.frame import Frame, array_at
from ssmpi.model import blas, blocks, brgemm, kernels, products
from ssmpi.model.instructions import run
from ssmpi.model.products import Products
from ssmpi.model.program import BY_A, COLUMNS, DETAIL, FLAGS, HALF, INPUTS, KIND, LINEAR, OUT, OUTPUTS, WEIGHT, Program

PIECE = 512  # examples: measured best of 128 to 2048 on 1 MB of second-level cache a core


def pieces(count: int) -> list[tuple[int, int]]:
    """A batch of ``count`` cut into as few pieces of at most PIECE as there can be, of equal size but for one."""
    size = -(-count // max(1, -(-count // PIECE)))
    return [(start, min(start + size, count)) for start in range(0, count, max(1, size))]


class Results:
    """Room for what a step returns, which stays: it is valid until the next step."""

    def __init__(self) -> None:
        self._whole = self._used = np.empty(0, np.float32), np.empty(0, np.float32)

    def of(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Logits float32 (batch,) and gradients by ``rows``, float32 (batch, tables, width), to be filled."""
        if rows.shape != self._used[1].shape:
            logits, by_rows = self._whole
            if rows.size > by_rows.size or rows.shape[1:] != by_rows.shape[1:]:
                logits, by_rows = self._whole = np.empty(len(rows), np.float32), aligned(rows.shape)
            self._used = logits[: len(rows)], by_rows[: len(rows)]
        return self._used


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
        operands = blocks.operands(kernels, program.layers, PIECE)
        values, by_values = aligned((2, PIECE * program.floats))
        arrays = operands.copies, operands.room, program.table, weights, gradients, values, by_values
        self._frame = Frame((sgemm, *kernels), arrays)
        self._results = Results()

    def __call__(self, dense: np.ndarray, rows: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """What it returns is valid until the next call."""
        logits, by_rows = self._results.of(rows)
        _step(self._frame.words, dense, rows, labels, logits, by_rows, True)
        return logits, by_rows

    def score(self, dense: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Logits float32 (batch,), without gradients."""
        logits = np.empty(len(dense), np.float32)
        _step(self._frame.words, dense, rows, logits, logits, rows, False)
        return logits


COPIES, ROOM, TABLE, WEIGHTS, GRADIENTS, VALUES, BY_VALUES = range(4, 18, 2)  # in the frame, after four addresses


@njit(cache=True, nogil=True)
def _step(
    frame: np.ndarray, dense: np.ndarray, rows: np.ndarray, labels: np.ndarray, logits: np.ndarray,
    by_rows: np.ndarray, learn: bool,
) -> None:  # fmt: skip
    """The batch in pieces: what an instruction writes is in cache when the next one reads it. Unless it is to
    ``learn``, forward only.
    """
    flat = array_at(frame, TABLE, np.int64)
    table = flat.reshape(flat.size // COLUMNS, COLUMNS)
    weights, gradients = array_at(frame, WEIGHTS, np.float32), array_at(frame, GRADIENTS, np.float32)
    values, by_values = array_at(frame, VALUES, np.float32), array_at(frame, BY_VALUES, np.float32)
    copies, room = array_at(frame, COPIES, np.uint16), array_at(frame, ROOM, np.uint16)
    count = len(logits)
    operands = blocks.Operands(brgemm.Kernels(frame[1], frame[2], frame[3]), copies, room)
    by = Products(frame[0], operands, count > PIECE and frame[1] != 0)
    if not count:
        if learn:
            gradients[:] = 0.0
        return
    _refresh(by, table, weights)
    features, own, by_own = dense.reshape(dense.size), rows.reshape(rows.size), by_rows.reshape(by_rows.size)
    size = -(-count // -(-count // PIECE)) if learn else PIECE
    across, width, logit = dense.shape[1], rows.size // count, table[-1, OUT]
    for start in range(0, count, size):
        stop = min(start + size, count)
        n = stop - start
        kernels.copy(features[start * across : stop * across], values)
        for backward in range(1 + learn):
            if backward:
                kernels.by_logits(logits[start:stop], labels[start:stop], count, by_values[n * logit : n * logit + n])
            run(
                by, table, 0, len(table), backward == 1, n, start == 0, weights, gradients, values, by_values,
                own[start * width : stop * width], by_own[start * width : stop * width],
            )  # fmt: skip
            if not backward:
                kernels.copy(values[n * logit : n * logit + n], logits[start:stop])
    brgemm.release(by.operands.kernels)


@njit(cache=True, nogil=True, inline="always")
def _refresh(by: Products, table: np.ndarray, weights: np.ndarray) -> None:
    """Lay out the weights as they are now, once a step."""
    for row in table:
        if row[KIND] == LINEAR:
            half, wanted = row[FLAGS] & HALF != 0, row[FLAGS] & BY_A != 0
            products.refresh(by, half, row[DETAIL], weights[row[WEIGHT] :], row[OUTPUTS], row[INPUTS], wanted)
