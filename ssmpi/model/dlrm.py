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
