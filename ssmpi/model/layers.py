"""A dense step's linear layers, forward and backward by hand, in buffers that stay.

A batch passes through them in pieces small enough that what one layer writes is in cache when the next one reads it;
nothing is allocated, and few calls hold the interpreter lock. Used by models with an ``own_step``.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import nn

from ssmpi.model import kernels

PIECE = 512  # rows: measured best of 128 to 2048 on 1 MB of second-level cache a core


class Layer:
    """One linear layer for pieces of ``rows`` examples, with a ReLU after it if ``relu``.

    ``forward`` fills ``output`` (rows, outputs). Whoever comes after it fills ``gradient``, that of the loss by
    ``output``, before ``backward`` is called. The gradients by weight and bias go into their ``grad``.
    """

    dtype = torch.float32

    def __init__(self, linear: nn.Linear, rows: int, *, relu: bool = True) -> None:
        assert isinstance(linear.weight.grad, torch.Tensor)
        assert isinstance(linear.bias.grad, torch.Tensor)
        self._relu = relu
        self._weight, self._bias = linear.weight.detach(), linear.bias.detach()
        self._by_weight, self._by_bias = linear.weight.grad, linear.bias.grad.numpy()
        self.output = torch.empty(rows, linear.out_features, dtype=self.dtype)
        self.gradient = torch.empty_like(self.output)
        self._see()

    def _see(self) -> None:
        """Make the views that each step uses: making them anew would cost as much as a small product."""
        self._weight_t, self._gradient_t = self._weight.t(), self.gradient.t()
        self._arrays = self.gradient.numpy(), self.output.numpy()

    def refresh(self) -> None:
        """Look at the weights as they are now: called once a batch."""

    def forward(self, values: torch.Tensor) -> None:
        """Output for values (rows, inputs)."""
        torch.addmm(self._bias, values, self._weight_t, out=self.output)
        if self._relu:
            torch.relu_(self.output)

    def backward(self, values: torch.Tensor, by_values: torch.Tensor | None, *, fresh: bool) -> None:
        """From ``gradient`` to those by weight and bias, added to what is there unless ``fresh``, and to that by
        values.
        """
        self._through_relu(fresh)
        self._to_weight(values, fresh)
        if by_values is not None:
            torch.mm(self.gradient, self._weight, out=by_values)

    def _through_relu(self, fresh: bool) -> None:
        if self._relu:
            kernels.relu_backward(*self._arrays, self._by_bias, fresh)
        else:
            kernels.column_sums(self._arrays[0], self._by_bias, fresh)

    def _to_weight(self, values: torch.Tensor, fresh: bool) -> None:
        if fresh:
            torch.mm(self._gradient_t, values, out=self._by_weight)
        else:
            torch.addmm(self._by_weight, self._gradient_t, values, out=self._by_weight)


class HalfLayer(Layer):
    """The same with products of bfloat16 numbers, for hidden layers. Weights, their gradients and biases' are float32
    outside: the processor sums products in float32, each piece's sum is rounded once, pieces are added in float32.
    """

    dtype = torch.bfloat16

    def _see(self) -> None:
        self._master = self._weight, self._bias
        self._weight, self._bias = self._weight.to(self.dtype), self._bias.to(self.dtype)
        self._weight_t, self._gradient_t = self._weight.t(), self.gradient.t()
        self._half_by_weight = torch.empty_like(self._weight)
        self._arrays = self.gradient.view(torch.uint16).numpy(), self.output.view(torch.uint16).numpy()

    def refresh(self) -> None:
        """Round the weights as they are now."""
        self._weight.copy_(self._master[0])
        self._bias.copy_(self._master[1])

    def _through_relu(self, fresh: bool) -> None:
        kernels.relu_backward_half(*self._arrays, self._by_bias, fresh)

    def _to_weight(self, values: torch.Tensor, fresh: bool) -> None:
        torch.mm(self._gradient_t, values, out=self._half_by_weight)
        if fresh:
            self._by_weight.copy_(self._half_by_weight)
        else:
            self._by_weight.add_(self._half_by_weight)


class Hidden:
    """Some layers in a row, all with ReLU, from ``values`` (rows, inputs) to ``output``.

    ``by_values`` is where the gradient by the values goes, None if nobody needs it.
    """

    def __init__(self, layers: Sequence[Layer], values: torch.Tensor, by_values: torch.Tensor | None) -> None:
        self._layers = layers
        self._values = [values, *(layer.output for layer in layers)]
        self._gradients = [by_values, *(layer.gradient for layer in layers)]
        self.output = self._values[-1]

    @property
    def gradient(self) -> torch.Tensor:
        """The place for the gradient of the loss by ``output``."""
        assert self._gradients[-1] is not None
        return self._gradients[-1]

    def refresh(self) -> None:
        """Look at the weights as they are now."""
        for layer in self._layers:
            layer.refresh()

    def forward(self) -> None:
        """Fill ``output``."""
        for layer, values in zip(self._layers, self._values, strict=False):
            layer.forward(values)

    def backward(self, *, fresh: bool) -> None:
        """From ``gradient`` to those by parameters and values."""
        for depth in range(len(self._layers) - 1, -1, -1):
            self._layers[depth].backward(self._values[depth], self._gradients[depth], fresh=fresh)


class Float32View:
    """A tensor ``narrow`` as a float32 tensor and array for what is not a hidden layer: its own memory, or a copy where
    it is of bfloat16.
    """

    def __init__(self, narrow: torch.Tensor) -> None:
        self.narrow, self.tensor = narrow, narrow.float()
        self.array: np.ndarray = self.tensor.numpy()
        self._same = self.tensor is narrow

    def read(self) -> None:
        """Take over what ``narrow`` holds now."""
        if not self._same:
            self.tensor.copy_(self.narrow)

    def write(self) -> None:
        """Give ``narrow`` what the array holds now."""
        if not self._same:
            self.narrow.copy_(self.tensor)


def linears(layers: nn.Sequential) -> list[nn.Linear]:
    """The linear layers of an MLP."""
    return [layer for layer in layers if isinstance(layer, nn.Linear)]


def widths(layers: nn.Sequential) -> list[int]:
    """An MLP's widths, its input's first."""
    found = linears(layers)
    return [found[0].in_features, *(layer.out_features for layer in found)]


def pieces(count: int) -> list[slice]:
    """A batch of ``count`` cut into as few pieces of at most PIECE as there can be, of equal size but for one."""
    size = -(-count // -(-count // PIECE))
    return [slice(start, min(start + size, count)) for start in range(0, count, size)]
