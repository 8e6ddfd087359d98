"""DLRM (Naumov et al., arXiv 1906.00091) without its tables, which the embedding PSs hold::

    clicked?                      logit (batch,)
                                     |
    over arch                  top MLP  512-256-1
                                     |
                     [ bottom output | pairwise dot products ]
    interaction                      |
                     dots of 1 + 26 vectors, lower triangle without the diagonal
                          |                          |
    dense arch      bottom MLP 512-256-64-16    rows (batch, 26, 16)  <- pulled
                          |                          |
                    dense (batch, 13)          ids (batch, 26)

Layers, initial values and interaction are those of facebookresearch/dlrm (dot interaction, no self terms).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import nn

from ssmpi.model.options import ModelOptions


class DLRM(nn.Module):
    """``forward(dense, rows)``: dense float32 (batch, 13), rows float32 (batch, features, dim) to logits (batch,)."""

    def __init__(self, options: ModelOptions, dense_features: int, sparse_features: int) -> None:
        super().__init__()
        vectors = 1 + sparse_features
        self.bottom = mlp((dense_features, *options.bottom), last_relu=True)
        self.top = mlp((options.bottom[-1] + vectors * (vectors - 1) // 2, *options.top), last_relu=False)
        lower = torch.tril_indices(vectors, vectors, offset=-1)
        self.register_buffer("pairs", lower[0] * vectors + lower[1], persistent=False)
        self.pairs: torch.Tensor

    def forward(self, dense: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """Score a batch."""
        x = self.bottom(dense)
        vectors = torch.cat([x.unsqueeze(1), rows], dim=1)
        dots = torch.bmm(vectors, vectors.transpose(1, 2)).flatten(1).index_select(1, self.pairs)
        logits: torch.Tensor = self.top(torch.cat([x, dots], dim=1)).squeeze(1)
        return logits

    @torch.no_grad()
    def forward_backward(
        self, dense: torch.Tensor, rows: torch.Tensor, labels: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits (batch,) and the gradient of the mean log-loss by ``rows``; that by each parameter goes into its ``grad``.

        What autograd computes, by hand: gradients are written where they belong instead of added to zeros, and fewer
        calls hold the interpreter lock. A test compares the two.
        """
        bottom, top = linears(self.bottom), linears(self.top)
        below = activations(bottom, dense, last_relu=True)
        x = below[-1]
        vectors = torch.cat([x.unsqueeze(1), rows], dim=1)
        dots = torch.bmm(vectors, vectors.transpose(1, 2)).flatten(1).index_select(1, self.pairs)
        above = activations(top, torch.cat([x, dots], dim=1), last_relu=False)
        logits = above[-1].squeeze(1)
        by_top = backward(top, above, ((torch.sigmoid(logits) - labels) / len(labels)).unsqueeze(1))
        by_dots = torch.zeros(len(labels), vectors.shape[1] ** 2)
        by_dots.index_copy_(1, self.pairs, by_top[:, x.shape[1] :])
        square = by_dots.view(len(labels), vectors.shape[1], -1)
        by_vectors = torch.baddbmm(torch.bmm(square, vectors), square.transpose(1, 2), vectors)
        backward(bottom, below, torch.where(x > 0, by_vectors[:, 0] + by_top[:, : x.shape[1]], 0.0), to_input=False)
        return logits, by_vectors[:, 1:].contiguous()


def linears(layers: nn.Sequential) -> list[nn.Linear]:
    """The linear layers of an MLP."""
    return [layer for layer in layers if isinstance(layer, nn.Linear)]


def activations(layers: list[nn.Linear], values: torch.Tensor, *, last_relu: bool) -> list[torch.Tensor]:
    """The input of an MLP and the output of each of its layers."""
    outputs = [values]
    for layer in layers:
        values = torch.addmm(layer.bias, values, layer.weight.t())
        if last_relu or layer is not layers[-1]:
            values = torch.relu_(values)
        outputs.append(values)
    return outputs


def backward(
    layers: list[nn.Linear], outputs: list[torch.Tensor], gradient: torch.Tensor, *, to_input: bool = True
) -> torch.Tensor:
    """From the gradient by an MLP's last sums (before any ReLU) to that by its input; parameters' into their ``grad``."""
    for depth in range(len(layers) - 1, -1, -1):
        layer, values = layers[depth], outputs[depth]
        torch.mm(gradient.t(), values, out=layer.weight.grad)
        torch.sum(gradient, 0, out=layer.bias.grad)
        if depth or to_input:
            gradient = torch.mm(gradient, layer.weight)
        if depth:
            gradient = torch.ops.aten.threshold_backward(gradient, values, 0)
    return gradient


def mlp(sizes: Sequence[int], *, last_relu: bool) -> nn.Sequential:
    """Linear layers of these sizes with ReLU between them. Values are set by ``initial_values``."""
    layers: list[nn.Module] = []
    for inputs, outputs in zip(sizes, sizes[1:], strict=False):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*(layers if last_relu else layers[:-1]))


def initial_values(shape: tuple[int, ...], generator: np.random.Generator) -> np.ndarray:
    """facebookresearch/dlrm: weights (m, n) ~ N(0, 2 / (m + n)), biases (m,) ~ N(0, 1 / m); float32."""
    spread = np.sqrt(2.0 / sum(shape)) if len(shape) == 2 else np.sqrt(1.0 / shape[0])
    return generator.normal(0.0, spread, size=shape).astype(np.float32)
