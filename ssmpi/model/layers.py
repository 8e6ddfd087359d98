"""A dense step's linear layers, forward and backward by hand, in buffers that stay.

A batch passes through them in pieces small enough that what one layer writes is in cache when the next one reads it, and
nothing is allocated. A chain of layers is one call of TorchScript, which runs without the interpreter lock. Used by models
that write their own ``forward_backward``.
"""

import sys
import threading
import warnings
from collections.abc import Sequence
from typing import Any, TypeVar, cast

import torch
from torch import nn

PIECE = 512  # rows: measured best of 128 to 2048 on 1 MB of second-level cache a core
PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16}

ONE_AT_A_TIME = threading.Lock()  # Python 3.11 to 3.12 count the depth of what they parse for all threads together

Module = TypeVar("Module", bound=nn.Module)


class Chain(nn.Module):
    """Linear layers in a row, a ReLU after each, for pieces of ``rows`` examples: from ``input`` (rows, inputs) to
    ``output`` (rows, outputs), and from ``gradient``, that of the loss by ``output``, to ``by_input``, which is empty if
    nobody ``asks`` for it. These four are float32. The gradients by weight and bias go into their ``grad``.

    With ``precision`` bf16 the products are of bfloat16 numbers. Weights, their gradients and biases' are float32 outside:
    the processor sums products in float32, each piece's sum is rounded once, pieces are added in float32.
    """

    # TorchScript reads these types: it cannot see that of an empty list
    gradients_t: list[torch.Tensor]
    master: list[torch.Tensor]
    master_biases: list[torch.Tensor]
    weights: list[torch.Tensor]
    weights_t: list[torch.Tensor]
    biases: list[torch.Tensor]
    by_weights: list[torch.Tensor]
    by_biases: list[torch.Tensor]
    products: list[torch.Tensor]

    def __init__(self, inputs: int, linears: Sequence[nn.Linear], rows: int, precision: str, *, asks: bool) -> None:
        super().__init__()
        dtype = PRECISIONS[precision]
        self.narrow, self.asks = dtype != torch.float32, asks
        sizes = [inputs, *(layer.out_features for layer in linears)]
        self.values = [torch.empty(rows, size, dtype=dtype) for size in sizes]
        self.gradients = [torch.empty_like(values) for values in self.values]
        if not asks:
            self.gradients[0] = torch.empty(0, dtype=dtype)
        self.gradients_t = [gradient.t() for gradient in self.gradients]  # made once: a view costs as much as a product
        self.input, self.output = self.values[0].float(), self.values[-1].float()  # the same memory if float32
        self.by_input, self.gradient = self.gradients[0].float(), self.gradients[-1].float()
        self.ones = torch.ones(rows)

        self.master = [layer.weight.detach() for layer in linears]
        self.master_biases = [layer.bias.detach() for layer in linears]
        self.weights = [weight.to(dtype) for weight in self.master]
        self.weights_t = [weight.t() for weight in self.weights]
        self.biases = [bias.to(dtype) for bias in self.master_biases]
        self.by_weights = [gradient_of(layer.weight) for layer in linears]
        self.by_biases = [gradient_of(layer.bias) for layer in linears]
        self.products = [torch.empty_like(weight) if self.narrow else weight for weight in self.weights]

    def forward(self, fresh: bool) -> None:
        """Fill ``output``. ``fresh``: this is a batch's first piece."""
        if self.narrow:
            if fresh:
                for i in range(len(self.weights)):
                    self.weights[i].copy_(self.master[i])
                    self.biases[i].copy_(self.master_biases[i])
            self.values[0].copy_(self.input)
        for i in range(len(self.weights)):
            torch.addmm(self.biases[i], self.values[i], self.weights_t[i], out=self.values[i + 1])
            torch.relu_(self.values[i + 1])
        if self.narrow:
            self.output.copy_(self.values[-1])

    @torch.jit.export
    def backward(self, fresh: bool) -> None:
        """From ``gradient`` to those by parameters, added to what is there unless ``fresh``, and to ``by_input``."""
        if self.narrow:
            self.gradients[-1].copy_(self.gradient)
        for k in range(len(self.weights)):
            i = len(self.weights) - 1 - k
            by_output, by_output_t = self.gradients[i + 1], self.gradients_t[i + 1]
            torch.ops.aten.threshold_backward(by_output, self.values[i + 1], 0.0, grad_input=by_output)
            if self.narrow:
                torch.mm(by_output_t, self.values[i], out=self.products[i])
                sums = torch.sum(by_output, [0], dtype=torch.float32)
                if fresh:
                    self.by_weights[i].copy_(self.products[i])
                    self.by_biases[i].copy_(sums)
                else:
                    self.by_weights[i].add_(self.products[i])
                    self.by_biases[i].add_(sums)
            elif fresh:
                torch.mm(by_output_t, self.values[i], out=self.by_weights[i])
                torch.mv(by_output_t, self.ones, out=self.by_biases[i])
            else:
                torch.addmm(self.by_weights[i], by_output_t, self.values[i], out=self.by_weights[i])
                torch.addmv(self.by_biases[i], by_output_t, self.ones, out=self.by_biases[i])
            if i > 0 or self.asks:
                torch.mm(by_output, self.weights[i], out=self.gradients[i])
        if self.narrow and self.asks:
            self.by_input.copy_(self.gradients[0])


class Head(nn.Module):
    """A chain, then one linear layer to ``logits`` (rows,), then the log-loss against ``labels`` (rows,), float32 all three;
    forward and backward.
    """

    def __init__(self, linears: Sequence[nn.Linear], rows: int, precision: str) -> None:
        super().__init__()
        *hidden, last = linears
        self.chain = Chain(linears[0].in_features, hidden, rows, precision, asks=True)
        self.labels, self.scores, self.by_scores = torch.empty(rows), torch.empty(rows, 1), torch.empty(rows, 1)
        self.logits, self.by_logits = self.scores[:, 0], self.by_scores[:, 0]
        self.by_scores_t = self.by_scores.t()
        self.weight, self.weight_t, self.bias = last.weight.detach(), last.weight.detach().t(), last.bias.detach()
        self.by_weight, self.by_bias = gradient_of(last.weight), gradient_of(last.bias)

    def forward(self, count: int, fresh: bool) -> None:
        """From ``chain.input`` to logits, and the gradients of the mean log-loss over ``count`` examples by parameters, added
        unless ``fresh``, and by ``chain.input``.
        """
        self.chain.forward(fresh)
        torch.addmm(self.bias, self.chain.output, self.weight_t, out=self.scores)
        torch.sigmoid(self.logits, out=self.by_logits)
        self.by_logits.sub_(self.labels).div_(count)
        if fresh:
            torch.mm(self.by_scores_t, self.chain.output, out=self.by_weight)
            torch.sum(self.by_scores, [0], out=self.by_bias)
        else:
            torch.addmm(self.by_weight, self.by_scores_t, self.chain.output, out=self.by_weight)
            self.by_bias.add_(torch.sum(self.by_scores))
        torch.mm(self.by_scores, self.weight, out=self.chain.gradient)
        self.chain.backward(fresh)


def scripted(module: Module) -> Module:
    """The module as TorchScript: a call takes the interpreter lock once. Where Python is too new for it, as it is."""
    if sys.version_info >= (3, 14):
        return module
    # deprecated for what compiles to other processors; nothing else frees the lock for several operations
    warnings.filterwarnings("ignore", "`torch.jit.script` is deprecated", DeprecationWarning)
    with ONE_AT_A_TIME:
        script: Any = torch.jit.script(module)
    return cast("Module", script)


def gradient_of(parameter: torch.Tensor) -> torch.Tensor:
    """Where the gradient by a parameter goes."""
    assert isinstance(parameter.grad, torch.Tensor)
    return parameter.grad


def linears(layers: nn.Sequential) -> list[nn.Linear]:
    """The linear layers of an MLP."""
    return [layer for layer in layers if isinstance(layer, nn.Linear)]


def pieces(count: int) -> list[slice]:
    """A batch of ``count`` cut into as few pieces of at most PIECE as there can be, of equal size but for one."""
    size = -(-count // -(-count // PIECE))
    return [slice(start, min(start + size, count)) for start in range(0, count, size)]
