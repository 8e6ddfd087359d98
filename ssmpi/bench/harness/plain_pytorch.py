"""A network in one process in plain PyTorch, after facebookresearch/dlrm's ``dlrm_s_pytorch.py``: autograd, an
``EmbeddingBag`` per feature with sparse gradients, PyTorch's optimizers, all cores inside every operator.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import cycle

import torch
from torch import nn

from ssmpi.bench.harness.rows import BatchSource
from ssmpi.config import Config
from ssmpi.data.batch import Batch
from ssmpi.model import reference
from ssmpi.model.initial import initial_vector
from ssmpi.model.network import Network
from ssmpi.model.parameters import by_name


class PlainNetwork(nn.Module):
    """Logits (batch,) for dense (batch, features) and, by feature, ids (batch,) with their offsets."""

    def __init__(self, network: Network, cardinalities: tuple[int, ...], seed: int) -> None:
        super().__init__()
        self.network, width = network, network.rows.width
        self.tables = nn.ModuleList(nn.EmbeddingBag(rows, width, mode="sum", sparse=True) for rows in cardinalities)
        values = by_name(network.layout, initial_vector(network, seed, None))
        self.names = [name for name, _ in values]
        self.dense = nn.ParameterList(torch.from_numpy(array.copy()) for _, array in values)

    def forward(self, dense: torch.Tensor, ids: list[torch.Tensor], offsets: torch.Tensor) -> torch.Tensor:
        """Score a batch."""
        rows = torch.cat([table(values, offsets) for table, values in zip(self.tables, ids, strict=True)], dim=1)
        parameters = dict(zip(self.names, self.dense, strict=True))
        return reference.logits(self.network, parameters, dense, rows.unflatten(1, (len(self.tables), -1)))


def collated(batch: Batch) -> tuple[torch.Tensor, list[torch.Tensor], torch.Tensor, torch.Tensor]:
    """A batch in the format of the reference's data loader. Made before the window, so it is not timed."""
    ids = [torch.from_numpy(column.astype("int64")) for column in batch.ids.T]
    labels = torch.from_numpy(batch.labels.copy())
    return torch.from_numpy(batch.dense.copy()), ids, torch.arange(len(batch)), labels


def plain_step(config: Config, source: BatchSource) -> Callable[[], object]:
    """One training step. Instead of row-wise Adagrad it uses PyTorch's Adagrad, with an accumulator per weight."""
    torch.manual_seed(config.run.seed)
    model = PlainNetwork(config.network, source.cardinalities, config.run.seed)
    kinds: dict[str, Callable[..., torch.optim.Optimizer]] = {
        "sgd": torch.optim.SGD,
        "adagrad": torch.optim.Adagrad,
        "rowwise_adagrad": torch.optim.Adagrad,
    }
    optimizers = [
        kinds[options.optimizer](part.parameters(), lr=options.rate)
        for options, part in ((config.dense, model.dense), (config.embedding, model.tables))
    ]
    loss_of = nn.BCEWithLogitsLoss()
    batches = cycle([collated(batch) for batch in source.batches(0)])

    def step() -> None:
        dense, ids, offsets, labels = next(batches)
        loss = loss_of(model(dense, ids, offsets), labels)
        model.zero_grad()
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()

    return step
