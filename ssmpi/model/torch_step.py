"""The step with products by torch's operators, used if torch's library lacks a function that the compiled step calls,
and for bfloat16 on processors without instructions for it. It runs the same program as ``executor`` in the same
buffers; only linear layers are computed by torch. Values between two bfloat16 layers stay bfloat16; weights, their
gradients and everything else are float32.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from ssmpi.model import blocks, brgemm, executor, kernels
from ssmpi.model.products import Products
from ssmpi.model.program import (
    ADD_A,
    BIAS,
    BY_A,
    FLAGS,
    INPUTS,
    KIND,
    LINEAR,
    NARROWEST,
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

NO_PRODUCTS = Products(0, blocks.operands(brgemm.NONE, (), 0))
MOST_SIZES = 4  # of a piece, for which buffers are kept

Arrays = tuple[np.ndarray, np.ndarray]  # weights and gradients


class TorchStep:
    """``step(dense, rows, labels)`` as ``CompiledStep``; ``half``: products of wide layers in bfloat16."""

    def __init__(self, program: Program, weights: np.ndarray, gradients: np.ndarray, *, half: bool) -> None:
        torch.set_num_threads(1)  # threads inside an operator fight with the worker threads; see DESIGN
        self._program, self._arrays = program, (weights, gradients)
        self._layers = {
            number: Weights(row, weights, gradients, half=half and min(row[INPUTS], row[OUTPUTS]) >= NARROWEST)
            for number, row in enumerate(program.table)
            if row[KIND] == LINEAR
        }
        self._pieces: dict[int, BatchPiece] = {}
        self._results = executor.Results()

    def __call__(self, dense: np.ndarray, rows: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """What it returns is valid until the next call."""
        count, (logits, by_rows) = len(labels), self._results.of(rows)
        if not count:
            self._arrays[1][:] = 0.0
        for layer in self._layers.values():
            layer.refresh()
        for start, stop in executor.pieces(count):
            piece, cut = self._piece(stop - start), slice(start, stop)
            logits[cut] = piece.forward(dense[cut], rows[cut])
            kernels.by_logits(logits[cut], labels[cut], count, piece.by_logits)
            piece.backward(rows[cut], by_rows[cut], fresh=start == 0)
        return logits, by_rows

    def _piece(self, examples: int) -> BatchPiece:
        """The buffers for ``examples`` examples; few sizes occur, because all batches but the last of a block are
        equal.
        """
        if examples not in self._pieces:
            if len(self._pieces) == MOST_SIZES:
                self._pieces.clear()
            self._pieces[examples] = BatchPiece(self._program, self._arrays, self._layers, examples)
        return self._pieces[examples]


class Weights:
    """One linear layer's parameters and gradients; ``matrix`` and ``bias`` are what products take."""

    def __init__(self, row: np.ndarray, weights: np.ndarray, gradients: np.ndarray, *, half: bool) -> None:
        k, m, place, bias = (int(row[column]) for column in (INPUTS, OUTPUTS, WEIGHT, BIAS))
        self.half, self.relu, self.sigmoid = half, bool(row[FLAGS] & RELU), bool(row[FLAGS] & SIGMOID)
        self._matrix = torch.from_numpy(weights[place : place + m * k]).view(m, k)
        self._bias = torch.from_numpy(weights[bias : bias + m]) if bias >= 0 else torch.zeros(m)
        self.by_matrix = torch.from_numpy(gradients[place : place + m * k]).view(m, k)
        self.by_bias = gradients[bias : bias + m] if bias >= 0 else np.empty(m, np.float32)
        self.matrix, self.bias = self._matrix, self._bias
        if half:
            self.matrix, self.bias = self._matrix.bfloat16(), self._bias.bfloat16()
            self._rounded = torch.empty_like(self.matrix)
        self.transposed = self.matrix.t()

    def refresh(self) -> None:
        """Round the weights as they are now: called once a batch."""
        if self.half:
            self.matrix.copy_(self._matrix)
            self.bias.copy_(self._bias)

    def add_gradient(self, by_out: torch.Tensor, values: torch.Tensor, *, fresh: bool) -> None:
        """by_matrix = by_out^T values, added unless ``fresh``; the sum of a piece is rounded once."""
        target = self._rounded if self.half else self.by_matrix
        if not self.half and not fresh:
            torch.addmm(target, by_out.t(), values, out=target)
            return
        torch.mm(by_out.t(), values, out=target)
        if self.half and fresh:
            self.by_matrix.copy_(target)
        elif self.half:
            self.by_matrix.add_(target)


class Value:
    """One value of a piece, (examples, width), and its gradient: float32, and bfloat16 if a bfloat16 layer reads or
    writes it. ``narrow``: only such layers do, so the float32 copy is not maintained.
    """

    def __init__(self, values: np.ndarray, by_values: np.ndarray, *, half: bool = False, narrow: bool = False) -> None:
        self.narrow = narrow
        self.see(values, by_values)
        if half:
            self.half, self.by_half = (torch.empty(values.shape, dtype=torch.bfloat16) for _ in range(2))
            self.bits = self.by_half.view(torch.uint16).numpy(), self.half.view(torch.uint16).numpy()

    def see(self, values: np.ndarray, by_values: np.ndarray) -> None:
        """Set the float32 buffers."""
        self.array, self.by_array = values, by_values
        self.tensor, self.gradient = torch.from_numpy(values), torch.from_numpy(by_values)


class Layer:
    """One linear layer from one value of a piece to another."""

    def __init__(self, weights: Weights, source: Value, out: Value, flags: int) -> None:
        self._weights, self._source, self._out = weights, source, out
        self._wanted, self._add = bool(flags & BY_A), bool(flags & ADD_A)

    def forward(self) -> None:
        """Fill the output."""
        weights, source, out = self._weights, self._source, self._out
        if weights.half and not source.narrow:
            source.half.copy_(source.tensor)
        given, target = (source.half, out.half) if weights.half else (source.tensor, out.tensor)
        torch.addmm(weights.bias, given, weights.transposed, out=target)
        if weights.relu:
            torch.relu_(target)
        if weights.half and not out.narrow:
            out.tensor.copy_(target)
        if weights.sigmoid:
            torch.sigmoid_(out.tensor)

    def backward(self, *, fresh: bool) -> None:
        """From the gradient by the output to those by the parameters, added unless ``fresh``, and by the input."""
        weights, source, out = self._weights, self._source, self._out
        self._through_activation(fresh)
        if weights.half and not out.narrow:
            out.by_half.copy_(out.gradient)
        by_out, given = (out.by_half, source.half) if weights.half else (out.gradient, source.tensor)
        weights.add_gradient(by_out, given, fresh=fresh)
        if self._wanted and not weights.half:
            torch.addmm(source.gradient, by_out, weights.matrix, beta=float(self._add), out=source.gradient)
        elif self._wanted:
            torch.mm(by_out, weights.matrix, out=source.by_half)
            if self._add:
                source.gradient.add_(source.by_half)
            elif not source.narrow:
                source.gradient.copy_(source.by_half)

    def _through_activation(self, fresh: bool) -> None:
        weights, out = self._weights, self._out
        if out.narrow:
            kernels.relu_backward_half(*out.bits, weights.by_bias, fresh)
        elif weights.relu:
            kernels.relu_backward(out.by_array, out.array, weights.by_bias, fresh)
        else:
            if weights.sigmoid:
                kernels.sigmoid_backward(out.by_array.reshape(-1), out.array.reshape(-1))
            kernels.column_sums(out.by_array, weights.by_bias, fresh)


class BatchPiece:
    """The program over so many ``examples`` in buffers of their own."""

    def __init__(self, program: Program, arrays: Arrays, layers: Mapping[int, Weights], examples: int) -> None:
        self._table, self._n, self._arrays = program.table, examples, arrays
        self._values, self._by_values = np.zeros((2, examples * program.floats), np.float32)
        width = program.network.inputs.tables * program.network.rows.width
        self._rows = Value(*np.empty((2, examples, width), np.float32), half=any(w.half for w in layers.values()))
        values = {ROWS_PLACE: self._rows}
        for name, place in program.places.items():
            if place != ROWS_PLACE:
                values[place] = self._value(place, program.network.widths[name], layers)
        self._layers = {
            number: Layer(weights, values[self._table[number, A]], values[self._table[number, OUT]],
                          self._table[number, FLAGS])
            for number, weights in layers.items()
        }  # fmt: skip
        self._logits, self.by_logits = (
            values[self._table[-1, OUT]].array[:, 0],
            values[self._table[-1, OUT]].by_array[:, 0],
        )

    def _value(self, place: int, width: int, layers: Mapping[int, Weights]) -> Value:
        """The value at ``place``, with its type from the layers that write and read it."""
        at = slice(self._n * place, self._n * (place + width))
        shape = self._n, width
        makers = [number for number, row in enumerate(self._table) if row[OUT] == place]
        readers = [number for number, row in enumerate(self._table) if place in row[[A, B, C]]]
        halves = [number in layers and layers[number].half for number in (*makers, *readers)]
        relu = any(number in layers and layers[number].relu for number in makers)
        return Value(
            self._values[at].reshape(shape), self._by_values[at].reshape(shape),
            half=any(halves), narrow=relu and all(halves) and len(readers) == 1,
        )  # fmt: skip

    def forward(self, dense: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Logits (examples,), valid until the next call."""
        self._values[: dense.size] = dense.ravel()
        self._rows.see(rows.reshape(self._n, -1), self._rows.by_array)
        for number in range(len(self._table)):
            if number in self._layers:
                self._layers[number].forward()
            else:
                self._run(number, fresh=True, backward=False)
        return self._logits

    def backward(self, rows: np.ndarray, by_rows: np.ndarray, *, fresh: bool) -> None:
        """From ``by_logits`` to the gradients by parameters, added unless ``fresh``, and by ``rows``."""
        self._rows.see(rows.reshape(self._n, -1), by_rows.reshape(self._n, -1))
        for number in range(len(self._table) - 1, -1, -1):
            if number in self._layers:
                self._layers[number].backward(fresh=fresh)
            else:
                self._run(number, fresh=fresh, backward=True)

    def _run(self, number: int, *, fresh: bool, backward: bool) -> None:
        rows, by_rows = self._rows.array.reshape(-1), self._rows.by_array.reshape(-1)
        executor.run(
            NO_PRODUCTS, self._table, number, number + 1, backward, self._n, fresh, *self._arrays, self._values,
            self._by_values, rows, by_rows,
        )  # fmt: skip
