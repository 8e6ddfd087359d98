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

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import nn

from ssmpi.model import blas, kernels
from ssmpi.model.compiled import CompiledStep
from ssmpi.model.layers import Float32View, HalfLayer, Hidden, Layer, linears, pieces, widths
from ssmpi.model.options import ModelOptions

Step = Callable[[np.ndarray, np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]
MOST_SIZES = 4  # of a piece, for which buffers are kept


class DLRM(nn.Module):
    """``forward(dense, rows)``: dense float32 (batch, 13), rows float32 (batch, features, dim) to logits (batch,)."""

    def __init__(self, options: ModelOptions, dense_features: int, sparse_features: int) -> None:
        super().__init__()
        vectors = 1 + sparse_features
        bottom, top = options.widths(dense_features, sparse_features)
        self.bottom, self.top = mlp(bottom, last_relu=True), mlp(top, last_relu=False)
        lower = torch.tril_indices(vectors, vectors, offset=-1)
        self.register_buffer("pairs", lower[0] * vectors + lower[1], persistent=False)
        self.pairs: torch.Tensor
        self.precision = options.precision

    def forward(self, dense: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """Score a batch."""
        x = self.bottom(dense)
        vectors = torch.cat([x.unsqueeze(1), rows], dim=1)
        dots = torch.bmm(vectors, vectors.transpose(1, 2)).flatten(1).index_select(1, self.pairs)
        logits: torch.Tensor = self.top(torch.cat([x, dots], dim=1)).squeeze(1)
        return logits

    def own_step(self, weights: np.ndarray, gradients: np.ndarray) -> Step:
        """What autograd computes, by hand, over flat parameters; see ``ThreadModel.forward_backward``. A test compares
        the two.
        """
        sgemm = blas.sgemm() if self.precision == "fp32" else None
        if not sgemm:
            return PiecewiseStep(self)
        return CompiledStep(widths(self.bottom), widths(self.top), weights, gradients, sgemm)


class PiecewiseStep:
    """The step by torch's operators: for bfloat16, and where torch's BLAS cannot be called without torch."""

    def __init__(self, model: DLRM) -> None:
        self._model = model
        self._steps: dict[int, PieceStep] = {}
        self._logits, self._by_rows = np.empty(0, np.float32), np.empty(0, np.float32)

    def __call__(self, dense: np.ndarray, rows: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """What it returns is valid until the next call."""
        if rows.size > self._by_rows.size:
            self._logits, self._by_rows = np.empty(len(labels), np.float32), np.empty_like(rows)
        logits, by_rows = self._logits[: len(labels)], self._by_rows[: len(labels)]
        for number, piece in enumerate(pieces(len(labels))):
            step = self._step(piece.stop - piece.start)
            if not number:
                step.refresh()
            logits[piece] = step.forward(dense[piece], rows[piece])
            step.backward(rows[piece], labels[piece], len(labels), by_rows[piece], fresh=not number)
        return logits, by_rows

    def _step(self, rows: int) -> PieceStep:
        """The buffers for a piece of this many rows: few sizes occur, all batches but the last of a block are equal."""
        if rows not in self._steps:
            if len(self._steps) == MOST_SIZES:
                self._steps.clear()
            self._steps[rows] = PieceStep(self._model, rows)
        return self._steps[rows]


class PieceStep:
    """Forward and backward of DLRM for pieces of ``rows`` examples; see ``layers`` for why in pieces."""

    def __init__(self, model: DLRM, rows: int) -> None:
        kind = {"fp32": Layer, "bf16": HalfLayer}[model.precision]
        bottom, (*top, last) = linears(model.bottom), linears(model.top)
        self._dense = Float32View(torch.empty(rows, bottom[0].in_features, dtype=kind.dtype))
        self._bottom = Hidden([kind(layer, rows) for layer in bottom], self._dense.narrow, None)
        self._x, self._by_x = Float32View(self._bottom.output), Float32View(self._bottom.gradient)
        width = linears(model.top)[0].in_features
        self._pairs, self._by_pairs = (Float32View(torch.empty(rows, width, dtype=kind.dtype)) for _ in range(2))
        self._top = Hidden([kind(layer, rows) for layer in top], self._pairs.narrow, self._by_pairs.narrow)
        self._above, self._by_above = Float32View(self._top.output), Float32View(self._top.gradient)
        self._last = Layer(last, rows, relu=False)
        self._logits, self._by_logits = self._last.output.numpy()[:, 0], self._last.gradient.numpy()[:, 0]

    def refresh(self) -> None:
        """Look at the weights as they are now: called once a batch."""
        self._bottom.refresh()
        self._top.refresh()

    def forward(self, dense: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Logits (rows,), valid until the next call."""
        self._dense.array[:] = dense
        self._dense.write()
        self._bottom.forward()
        self._x.read()
        kernels.interact(self._x.array, rows, self._pairs.array)
        self._pairs.write()
        self._top.forward()
        self._above.read()
        self._last.forward(self._above.tensor)
        return self._logits

    def backward(self, rows: np.ndarray, labels: np.ndarray, count: int, by_rows: np.ndarray, *, fresh: bool) -> None:
        """Gradients of the mean log-loss over ``count`` examples: by ``rows`` into ``by_rows``, by each parameter into
        its ``grad``, added unless ``fresh``.
        """
        kernels.by_logits(self._logits, labels, count, self._by_logits)
        self._last.backward(self._above.tensor, self._by_above.tensor, fresh=fresh)
        self._by_above.write()
        self._top.backward(fresh=fresh)
        self._by_pairs.read()
        kernels.interact_backward(self._x.array, rows, self._by_pairs.array, self._by_x.array, by_rows)
        self._by_x.write()
        self._bottom.backward(fresh=fresh)


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


def center_inputs(weight: np.ndarray, bias: np.ndarray, means: np.ndarray) -> None:
    """bias (m,) -= weight (m, n) @ means (n,): a layer sees inputs of mean 0 (LeCun et al. 1998, Efficient BackProp).

    All float32; summed exactly, because replicas of different processors must begin equal.
    """
    for unit, row in enumerate(weight.astype(float) * means):
        bias[unit] -= np.float32(math.fsum(row))
