"""Runs a program: forward and backward pass of a batch in compiled code, without the GIL or torch.

With 24 threads in a process, a step of thirty Python calls waits for the GIL thirty times. Here matrix products are
done by BLAS or oneDNN, the loops between them pass once over what a product has just written, and all values and
gradients lie in two buffers that stay in cache. No kernel depends on a particular network.
"""

from __future__ import annotations

import numpy as np

from ssmpi.model import blas, brgemm, kernels, onednn_gemm
from ssmpi.model.brgemm import Kernels
from ssmpi.model.instructions import addresses, call
from ssmpi.model.messages import NOBODY, Channel
from ssmpi.model.optimizers import at_step, update
from ssmpi.model.program import COLUMNS, FLAGS, HALF, INPUTS, KIND, LINEAR, OUT, OUTPUTS, ROWS_PLACE, WEIGHT, A, Program
from ssmpi.model.step_args import (
    BY_ROWS,
    BY_VALUES,
    DEFERRED,
    EXAMPLES,
    FIRST,
    FIRST_EXAMPLE,
    FUNCTIONS,
    GRADIENTS,
    IN_PIECES,
    LAST,
    RELEASE,
    ROWS,
    SCORING,
    SINGLE,
    TABLE,
    VALUES,
    WEIGHTS,
    operands,
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
    """``step(dense, rows, labels, first_example)`` returns logits and gradients with respect to rows, as
    ``ThreadModel.forward_backward``.

    Create it on the thread that calls it. ``weights`` and ``gradients`` float32 (parameters,), in the layout of the
    program's part; without gradients it can only ``score``. ``sgemm`` is the address of BLAS's function, ``kernels``
    are oneDNN's, used instead of it at least for bfloat16. Parts of one network meet by a ``channel``.
    """

    def __init__(
        self, program: Program, weights: np.ndarray, gradients: np.ndarray | None, sgemm: int,
        kernels: Kernels = brgemm.NONE, channel: Channel = NOBODY,
    ) -> None:  # fmt: skip
        blas.use_one_thread()
        by = onednn_gemm.operands(kernels, program.layers, PIECE)
        values, by_values = aligned((2, PIECE * program.floats))
        instructions = program.table, addresses(program.table, kernels, backward=gradients is not None)
        gradients = np.empty(0, np.float32) if gradients is None else gradients
        assert program.estimates
        estimates = program.estimates.values
        self._deferred = np.zeros(3, np.int64)
        arrays = by.copies, by.buffer, *instructions, weights, gradients, values, by_values, self._deferred
        of_piece = [0] * (BY_ROWS + 2 - EXAMPLES)
        numbers = sgemm, *kernels, channel.limit, *of_piece
        self.args = KernelArgs(numbers, (*arrays, channel.addresses, channel.failed, estimates))
        self.results = Results()

    def __call__(
        self, dense: np.ndarray, rows: np.ndarray, labels: np.ndarray, first_example: int = 0
    ) -> tuple[np.ndarray, np.ndarray]:
        """The returned arrays are valid until the next call. Some gradients are deferred to ``finish`` or
        ``update``.
        """
        logits, by_rows = self.results.of(rows)
        run_step(self.args.words, dense, rows, labels, logits, by_rows, first_example)
        return logits, by_rows

    def score(self, dense: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Logits float32 (batch,), without gradients."""
        self.finish()  # before the values are overwritten
        logits = np.empty(len(dense), np.float32)
        run_step(self.args.words, dense, rows, logits, logits, rows, SCORING)
        return logits

    def finish(self) -> None:
        """Compute the deferred gradients: ``gradients`` then holds all of them."""
        if self._deferred[LEFT]:
            finish(self.args.words, 0)

    def update(self, optimizer: np.ndarray, factor: float) -> None:
        """Step all weights by an optimizer's arguments. Deferred gradients may never be written to ``gradients``."""
        _update(self.args.words, optimizer, factor)


# Places in an optimizer's arguments, after the number of parameters that it steps and that of its state's vectors.
NUMBERS, STEPS, STATE = 2, 4, 6
# Of the piece whose weight gradients are deferred: examples, 0 if there is none; whether it is the only one; and where
# in the vector those begin that have been computed meanwhile.
LEFT, FRESH, COMPLETE = range(3)


@njit(cache=True, nogil=True)
def run_step(
    args: np.ndarray, dense: np.ndarray, rows: np.ndarray, labels: np.ndarray, logits: np.ndarray,
    by_rows: np.ndarray, first_example: int,
) -> None:  # fmt: skip
    """Run the batch in as few equal pieces of at most PIECE as possible, so that an instruction's output is still in
    cache when the next one reads it. ``first_example`` is the number of its first example, or SCORING: then up to the
    logits. A part that is not at home has no ``labels``; the size of ``logits`` is that of its batch.
    """
    learn = first_example != SCORING
    values, by_values = array_at(args, VALUES, np.float32), array_at(args, BY_VALUES, np.float32)
    deferred, count = array_at(args, DEFERRED, np.int64), len(logits)
    deferred[LEFT] = 0
    if not count:
        if learn:
            array_at(args, GRADIENTS, np.float32)[:] = 0.0
        return
    size = -(-count // -(-count // PIECE)) if learn else PIECE
    features, own, by_own = dense.reshape(dense.size), rows.reshape(rows.size), by_rows.reshape(by_rows.size)
    across, width = dense.shape[1], rows.size // count
    args[IN_PIECES] = count > PIECE
    for start in range(0, count, size):
        stop = min(start + size, count)
        n = stop - start
        args[EXAMPLES], args[FIRST], args[LAST] = n, start == 0, stop == count
        args[FIRST_EXAMPLE] = first_example + start if learn else SCORING
        args[ROWS], args[ROWS + 1] = own[start * width :].ctypes.data, n * width
        args[BY_ROWS], args[BY_ROWS + 1] = by_own[start * width :].ctypes.data, n * width
        kernels.copy(features[start * across : stop * across], values)
        _run(args, False)
        if labels.size:
            logit = _table(args)[-1, OUT]
            kernels.copy(values[n * logit : n * logit + n], logits[start:stop])
            if learn:
                kernels.by_logits(logits[start:stop], labels[start:stop], count, by_values[n * logit : n * logit + n])
        if learn:
            _run(args, True)
    if learn:
        deferred[LEFT], deferred[FRESH], deferred[COMPLETE] = n, n == count, array_at(args, GRADIENTS, np.float32).size
    brgemm.release(args[RELEASE])


@njit(cache=True, nogil=True)
def _run(args: np.ndarray, backward: bool) -> None:
    """Execute all instructions on a piece, or, if ``backward``, their gradients in reverse order."""
    table, functions = _table(args), array_at(args, FUNCTIONS, np.int64)
    count = len(table)
    for step in range(count):
        number = count - 1 - step if backward else step
        call(functions[backward * count + number], args, table[number])  # type: ignore[call-arg]


@njit(cache=True, nogil=True)
def _table(args: np.ndarray) -> np.ndarray:
    flat = array_at(args, TABLE, np.int64)
    return flat.reshape(flat.size // COLUMNS, COLUMNS)


@njit(cache=True, nogil=True)
def is_deferred(args: np.ndarray, row: np.ndarray) -> bool:
    """Whether an instruction's weight gradient is computed later, some rows at a time: see ``linear``."""
    return row[KIND] == LINEAR and row[FLAGS] & HALF == 0 and args[SINGLE] != 0 and row[A] != ROWS_PLACE


@njit(cache=True, nogil=True)
def finish(args: np.ndarray, first: int) -> None:
    """Compute the deferred gradients of the last step, of weights that lie at ``first`` or behind it."""
    gradients, by = array_at(args, GRADIENTS, np.float32), operands(args)
    values, by_values = array_at(args, VALUES, np.float32), array_at(args, BY_VALUES, np.float32)
    deferred = array_at(args, DEFERRED, np.int64)
    n = deferred[LEFT]
    for row in _table(args):
        if is_deferred(args, row) and first <= row[WEIGHT] < deferred[COMPLETE]:
            by_out, given, out = by_values[n * row[OUT] :], values[n * row[A] :], gradients[row[WEIGHT] :]
            onednn_gemm.by_weight(by, by_out, given, out, n, row[OUTPUTS], row[INPUTS], deferred[FRESH] != 0)
    deferred[COMPLETE] = first
    if not first:
        deferred[LEFT] = 0


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
    deferred, by = array_at(args, DEFERRED, np.int64), operands(args)
    n, fresh, done = deferred[LEFT], deferred[FRESH] != 0, 0
    scratch = by.buffer.view(np.float32)[brgemm.SINGLE_ROWS * onednn_gemm.up_to(n, onednn_gemm.EDGE) :]
    for row in _table(args):
        first, m, k = row[WEIGHT], row[OUTPUTS], row[INPUTS]
        if n and is_deferred(args, row) and first < deferred[COMPLETE]:
            update(now, weights[done:first], gradients[done:], state, done)
            done = first + m * k
            for start in range(0, m, brgemm.SINGLE_ROWS):
                rows, place = min(brgemm.SINGLE_ROWS, m - start), first + start * k
                by_rows = scratch if fresh else gradients[place:]
                by_out = by_values[n * row[OUT] + start :]
                onednn_gemm.by_weight_rows(by, by_out, values[n * row[A] :], by_rows, rows, n, m, k, fresh)
                update(now, weights[place : place + rows * k], by_rows, state, place)
    update(now, weights[done : optimizer[0]], gradients[done:], state, done)
    deferred[LEFT] = 0
