"""DLRM in one process as users of PyTorch write it, after facebookresearch/dlrm's ``dlrm_s_pytorch.py``: autograd, an
``EmbeddingBag`` a feature with sparse gradients, SGD for everything, all cores inside every operator.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import cycle

import torch
from torch import nn

from ssmpi.bench.harness.rows import Source
from ssmpi.config import Config
from ssmpi.data.batch import Batch


class PlainDLRM(nn.Module):
    """Probabilities (batch,) for dense (batch, features) and, by feature, ids (batch,) with their offsets."""

    def __init__(
        self, cardinalities: tuple[int, ...], dense: int, bottom: tuple[int, ...], top: tuple[int, ...]
    ) -> None:
        super().__init__()
        dim = bottom[-1]
        self.tables = nn.ModuleList(nn.EmbeddingBag(rows, dim, mode="sum", sparse=True) for rows in cardinalities)
        self.bottom = layers((dense, *bottom), nn.ReLU())
        vectors = 1 + len(cardinalities)
        self.top = layers((dim + vectors * (vectors - 1) // 2, *top), nn.Sigmoid())
        self.lower = torch.tril_indices(vectors, vectors, offset=-1)

    def forward(self, dense: torch.Tensor, ids: list[torch.Tensor], offsets: torch.Tensor) -> torch.Tensor:
        """Score a batch."""
        x = self.bottom(dense)
        rows = [table(values, offsets) for table, values in zip(self.tables, ids, strict=True)]
        vectors = torch.cat([x, *rows], dim=1).view(len(x), 1 + len(rows), -1)
        dots = torch.bmm(vectors, vectors.transpose(1, 2))[:, self.lower[0], self.lower[1]]
        scores: torch.Tensor = self.top(torch.cat([x, dots], dim=1)).squeeze(1)
        return scores


def layers(sizes: tuple[int, ...], last: nn.Module) -> nn.Sequential:
    """Linear layers with ReLU between them and ``last`` behind them."""
    found: list[nn.Module] = []
    for inputs, outputs in zip(sizes, sizes[1:], strict=False):
        found += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*found[:-1], last)


def collated(batch: Batch) -> tuple[torch.Tensor, list[torch.Tensor], torch.Tensor, torch.Tensor]:
    """A batch as the reference's data loader hands it over. Made before the window: its time is not charged."""
    ids = [torch.from_numpy(batch.ids[:, f].astype("int64")) for f in range(batch.ids.shape[1])]
    labels = torch.from_numpy(batch.labels.copy())
    return torch.from_numpy(batch.dense.copy()), ids, torch.arange(len(batch)), labels


def plain_step(config: Config, source: Source) -> Callable[[], object]:
    """One training step."""
    torch.manual_seed(config.run.seed)
    model = PlainDLRM(source.cardinalities, config.network.inputs.dense, config.model.bottom, config.model.top)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss_of = nn.BCELoss()
    batches = cycle([collated(batch) for batch in source.batches(0)])

    def step() -> None:
        dense, ids, offsets, labels = next(batches)
        loss = loss_of(model(dense, ids, offsets), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step
