"""Runs a program: forward and backward pass of a batch in compiled code, without the GIL or torch.

With 24 threads in a process, a step of thirty Python calls waits for the GIL thirty times. Here matrix products are
done by BLAS or oneDNN, the loops between them pass once over what a product has just written, and all values and
gradients lie in two buffers that stay in cache. No kernel depends on a particular network.
"""

from __future__ import annotations

import numpy as np

from ssmpi.model import blas, brgemm, gemm, kernels, onednn_gemm
from ssmpi.model.gemm import Gemm
from ssmpi.model.instructions import deferrable, run
from ssmpi.model.messages import NOBODY, Channel, Mail
from ssmpi.model.optimizers import at_step, update
from ssmpi.model.program import (
    BY_A,
    COLUMNS,
    DETAIL,
    FLAGS,
    HALF,
    INPUTS,
    KIND,
    LINEAR,
    OUT,
    OUTPUTS,
    WEIGHT,
    A,
    Program,
)
from ssmpi.runtime.compiled.aligned import aligned
from ssmpi.runtime.compiled.jit import njit
from ssmpi.runtime.compiled.kernel_args import KernelArgs, array_at

PIECE = 512  # examples: the fastest of 128 to 2048, measured with 1 MB of L2 cache per core


class Results:
    """Preallocated outputs of a step, overwritten by the next step."""

    def __init__(self) -> None:
        self._whole = self._used = np.empty(0, np.float32), np.empty(0, np.float32)

    def of(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Arrays for logits float32 (batch,) and gradients with respect to ``rows`` float32 (batch, tables, width)."""
        if rows.shape != self._used[1].shape:
            logits, by_rows = self._whole
            if rows.size > by_rows.size or rows.shape[1:] != by_rows.shape[1:]:
                logits, by_rows = self._whole = np.empty(len(rows), np.float32), aligned(rows.shape)
            self._used = logits[: len(rows)], by_rows[: len(rows)]
        return self._used


class CompiledStep:
    """``step(dense, rows, labels)`` returns logits and gradients with respect to rows, as
    ``ThreadModel.forward_backward``.

    Create it on the thread that calls it. ``weights`` and ``gradients`` float32 (parameters,), in the layout of the
    program's part; ``sgemm`` is the address of BLAS's function, ``kernels`` are oneDNN's, used instead of it at least
    for bfloat16. Parts of one network meet by a ``channel``.
    """

    def __init__(
        self, program: Program, weights: np.ndarray, gradients: np.ndarray, sgemm: int,
        kernels: brgemm.Kernels = brgemm.NONE, channel: Channel = NOBODY,
    ) -> None:  # fmt: skip
        blas.use_one_thread()
        operands = onednn_gemm.operands(kernels, program.layers, PIECE)
        values, by_values = aligned((2, PIECE * program.floats))
        arrays = operands.copies, operands.buffer, program.table, weights, gradients, values, by_values
        assert program.estimates
        estimates = program.estimates.values
        self._deferred = np.zeros(3, np.int64)
        mail = channel.addresses, channel.failed
        self.args = KernelArgs((sgemm, *kernels, channel.limit), (*arrays, self._deferred, *mail, estimates))
        self.results = Results()

    def __call__(self, dense: np.ndarray, rows: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The returned arrays are valid until the next call. Some gradients are deferred to ``finish`` or
        ``update``.
        """
        logits, by_rows = self.results.of(rows)
        run_step(self.args.words, dense, rows, labels, logits, by_rows, True)
        return logits, by_rows

    def score(self, dense: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Logits float32 (batch,), without gradients."""
        self.finish()  # before the values are overwritten
        logits = np.empty(len(dense), np.float32)
        run_step(self.args.words, dense, rows, logits, logits, rows, False)
        return logits

    def finish(self) -> None:
        """Compute the deferred gradients: ``gradients`` then holds all of them."""
        if self._deferred[EXAMPLES]:
            finish(self.args.words, 0)

    def update(self, optimizer: np.ndarray, factor: float) -> None:
        """Step all weights by an optimizer's arguments. Deferred gradients may never be written to ``gradients``."""
        _update(self.args.words, optimizer, factor)


# Places in the arguments, after four addresses.
LIMIT, COPIES, BUFFER, TABLE, WEIGHTS, GRADIENTS, VALUES, BY_VALUES, DEFERRED, ADDRESSES, FAILED = 4, *range(5, 25, 2)
ESTIMATES = FAILED + 2
# Places in an optimizer's arguments, after the number of parameters that it steps and that of its state's vectors.
NUMBERS, STEPS, STATE = 2, 4, 6
# Of the piece whose weight gradients are deferred: examples, 0 if there is none; whether it is the only one; and where
# in the vector those begin that have been computed meanwhile.
EXAMPLES, FRESH, COMPLETE = range(3)


@njit(cache=True, nogil=True)
def run_step(
    args: np.ndarray, dense: np.ndarray, rows: np.ndarray, labels: np.ndarray, logits: np.ndarray,
    by_rows: np.ndarray, learn: bool,
) -> None:  # fmt: skip
    """Run the batch in as few equal pieces of at most PIECE as possible, so that an instruction's output is still in
    cache when the next one reads it. Without ``learn``, up to the logits. A part that is not at home has no ``labels``;
    the size of ``logits`` is that of its batch.
    """
    weights, gradients = array_at(args, WEIGHTS, np.float32), array_at(args, GRADIENTS, np.float32)
    values, by_values = array_at(args, VALUES, np.float32), array_at(args, BY_VALUES, np.float32)
    table, deferred, count = _table(args), array_at(args, DEFERRED, np.int64), len(logits)
    by, mail = _gemm(args, count > PIECE), mail_of(args)
    deferred[EXAMPLES] = 0
    if not count:
        if learn:
            gradients[:] = 0.0
        return
    _refresh(by, table, weights)
    estimates = array_at(args, ESTIMATES, np.float64)
    features, own, by_own = dense.reshape(dense.size), rows.reshape(rows.size), by_rows.reshape(by_rows.size)
    size = -(-count // -(-count // PIECE)) if learn else PIECE
    across, width = dense.shape[1], rows.size // count
    for start in range(0, count, size):
        stop = min(start + size, count)
        n = stop - start
        kernels.copy(features[start * across : stop * across], values)
        for backward in (False, True):
            run(
                by, mail, table, backward, n, start == 0, weights, gradients, values, by_values,
                own[start * width : stop * width], by_own[start * width : stop * width], estimates,
                stop == count,
            )  # fmt: skip
            if not backward and labels.size:
                logit = table[-1, OUT]
                kernels.copy(values[n * logit : n * logit + n], logits[start:stop])
                if not learn:
                    break
                kernels.by_logits(logits[start:stop], labels[start:stop], count, by_values[n * logit : n * logit + n])
    if learn:
        deferred[EXAMPLES], deferred[FRESH], deferred[COMPLETE] = n, n == count, gradients.size
    brgemm.release(by.operands.kernels)


@njit(cache=True, nogil=True, inline="always")
def mail_of(args: np.ndarray) -> Mail:
    """The mailboxes in the arguments."""
    return Mail(array_at(args, ADDRESSES, np.int64), array_at(args, FAILED, np.int64), args[LIMIT])


@njit(cache=True, nogil=True, inline="always")
def _table(args: np.ndarray) -> np.ndarray:
    flat = array_at(args, TABLE, np.int64)
    return flat.reshape(flat.size // COLUMNS, COLUMNS)


@njit(cache=True, nogil=True, inline="always")
def _gemm(args: np.ndarray, in_pieces: bool) -> Gemm:
    copies, buffer = array_at(args, COPIES, np.uint16), array_at(args, BUFFER, np.uint16)
    operands = onednn_gemm.Operands(brgemm.Kernels(args[1], args[2], args[3]), copies, buffer)
    return Gemm(args[0], operands, in_pieces and args[1] != 0)


@njit(cache=True, nogil=True, inline="always")
def _refresh(by: Gemm, table: np.ndarray, weights: np.ndarray) -> None:
    """Pack the current weights for the products, once per step."""
    for row in table:
        if row[KIND] == LINEAR:
            half, wanted = row[FLAGS] & HALF != 0, row[FLAGS] & BY_A != 0
            gemm.refresh(by, half, row[DETAIL], weights[row[WEIGHT] :], row[OUTPUTS], row[INPUTS], wanted)


@njit(cache=True, nogil=True)
def finish(args: np.ndarray, first: int) -> None:
    """Compute the deferred gradients of the last step, of weights that lie at ``first`` or behind it."""
    gradients, by = array_at(args, GRADIENTS, np.float32), _gemm(args, False)
    values, by_values = array_at(args, VALUES, np.float32), array_at(args, BY_VALUES, np.float32)
    deferred = array_at(args, DEFERRED, np.int64)
    n = deferred[EXAMPLES]
    for row in _table(args):
        if deferrable(by, row) and first <= row[WEIGHT] < deferred[COMPLETE]:
            by_out, given, out = by_values[n * row[OUT] :], values[n * row[A] :], gradients[row[WEIGHT] :]
            onednn_gemm.by_weight(by.operands, by_out, given, out, n, row[OUTPUTS], row[INPUTS], deferred[FRESH] != 0)
    deferred[COMPLETE] = first
    if not first:
        deferred[EXAMPLES] = 0


@njit(cache=True, nogil=True)
def update_all(optimizer: np.ndarray, weights: np.ndarray, gradients: np.ndarray, factor: float) -> None:
    """Step all ``weights`` by an optimizer's arguments and whole ``gradients``."""
    update(_at_step(optimizer, factor), weights, gradients, _state(optimizer), 0)


@njit(cache=True, nogil=True, inline="always")
def _at_step(optimizer: np.ndarray, factor: float) -> np.ndarray:
    return at_step(array_at(optimizer, NUMBERS, np.float64), array_at(optimizer, STEPS, np.float64), factor)


@njit(cache=True, nogil=True, inline="always")
def _state(optimizer: np.ndarray) -> np.ndarray:
    """An optimizer's state (vectors, parameters)."""
    return array_at(optimizer, STATE, np.float32).reshape(optimizer[1], optimizer[0])


@njit(cache=True, nogil=True)
def _update(args: np.ndarray, optimizer: np.ndarray, factor: float) -> None:
    """Step the weights that an ``optimizer`` is for; gradients of copies, behind them, have been finished. Deferred
    ones are computed for some rows of a weight at a time and applied while they are in cache, without a round trip to
    memory.
    """
    now, state = _at_step(optimizer, factor), _state(optimizer)
    weights, gradients = array_at(args, WEIGHTS, np.float32), array_at(args, GRADIENTS, np.float32)
    values, by_values = array_at(args, VALUES, np.float32), array_at(args, BY_VALUES, np.float32)
    deferred, by = array_at(args, DEFERRED, np.int64), _gemm(args, False)
    n, fresh, done = deferred[EXAMPLES], deferred[FRESH] != 0, 0
    scratch = by.operands.buffer.view(np.float32)[brgemm.SINGLE_ROWS * onednn_gemm.up_to(n, onednn_gemm.EDGE) :]
    for row in _table(args):
        first, m, k = row[WEIGHT], row[OUTPUTS], row[INPUTS]
        if n and deferrable(by, row) and first < deferred[COMPLETE]:
            update(now, weights[done:first], gradients[done:], state, done)
            done = first + m * k
            for start in range(0, m, brgemm.SINGLE_ROWS):
                rows, place = min(brgemm.SINGLE_ROWS, m - start), first + start * k
                by_rows = scratch if fresh else gradients[place:]
                by_out = by_values[n * row[OUT] + start :]
                onednn_gemm.by_weight_rows(by.operands, by_out, values[n * row[A] :], by_rows, rows, n, m, k, fresh)
                update(now, weights[place : place + rows * k], by_rows, state, place)
    update(now, weights[done : optimizer[0]], gradients[done:], state, done)
    deferred[EXAMPLES] = 0
