"""A network in plain PyTorch, twice. ``plain_step`` follows facebookresearch/dlrm's ``dlrm_s_pytorch.py``: autograd, an
``EmbeddingBag`` per feature with sparse gradients, PyTorch's optimizers, all cores inside every operator.
``tuned_step`` is the fastest that we could write: all tables in one, its rows updated by ``index_add_``, and a process
with a model of its own for each core, which exchange nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import cycle
from typing import cast

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


OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": torch.optim.SGD,
    "adagrad": torch.optim.Adagrad,
    "rowwise_adagrad": torch.optim.Adagrad,
}


def plain_step(config: Config, source: BatchSource) -> Callable[[], object]:
    """One training step. Instead of row-wise Adagrad it uses PyTorch's Adagrad, with an accumulator per weight."""
    torch.manual_seed(config.run.seed)
    model = PlainNetwork(config.network, source.cardinalities, config.run.seed)
    optimizers = [
        OPTIMIZERS[options.optimizer](part.parameters(), lr=options.rate)
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


class MergedNetwork:
    """``table`` has the rows of all features, those of feature f from ``offsets[f]`` on, float32 (rows, width);
    ``parameters`` are the dense ones by name. Both are updated in place.
    """

    def __init__(self, network: Network, cardinalities: tuple[int, ...], seed: int) -> None:
        self._network = network
        self.offsets = torch.tensor([0, *cardinalities[:-1]]).cumsum(0)
        self.table = torch.randn(sum(cardinalities), network.rows.width)
        values = by_name(network.layout, initial_vector(network, seed, None))
        self.parameters = {name: torch.from_numpy(array.copy()).requires_grad_() for name, array in values}

    def loss(self, dense: torch.Tensor, rows: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """The mean log-loss of a batch; ``rows`` (batch * features, width) are the gathered ones."""
        rows = rows.unflatten(0, (len(labels), len(self.offsets)))
        logits = reference.logits(self._network, self.parameters, dense, rows)
        return nn.functional.binary_cross_entropy_with_logits(logits, labels)


def tuned_step(config: Config, source: BatchSource, process: int) -> Callable[[], object]:
    """One training step of the given process. Row-wise Adagrad keeps one accumulator a row, as ssmpi's does."""
    torch.manual_seed(config.run.seed)
    model = MergedNetwork(config.network, source.cardinalities, config.run.seed)
    optimizer = OPTIMIZERS[config.dense.optimizer](list(model.parameters.values()), lr=config.dense.rate)
    update = _row_update(config, model.table)
    batches = cycle([_merged(batch, model.offsets) for batch in source.batches(process)])

    def step() -> None:
        dense, ids, labels = next(batches)
        rows = model.table.index_select(0, ids).requires_grad_()
        model.loss(dense, rows, labels).backward()
        optimizer.step()
        optimizer.zero_grad()
        update(ids, cast("torch.Tensor", rows.grad))

    return step


def _merged(batch: Batch, offsets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Dense features, row numbers in the merged table (batch * features,), labels; made before the window."""
    ids = torch.from_numpy(batch.ids.astype("int64")) + offsets
    return torch.from_numpy(batch.dense.copy()), ids.flatten(), torch.from_numpy(batch.labels.copy())


def _row_update(config: Config, table: torch.Tensor) -> Callable[[torch.Tensor, torch.Tensor], object]:
    """Updates the rows of the given numbers with their gradients; duplicates add up."""
    rate, epsilon = config.embedding.rate, config.embedding.epsilon
    if config.embedding.optimizer == "sgd":
        return lambda ids, gradients: table.index_add_(0, ids, gradients, alpha=-rate)
    state = torch.full((len(table),), config.embedding.initial_state)

    def adagrad(ids: torch.Tensor, gradients: torch.Tensor) -> None:
        rows, places = torch.unique(ids, return_inverse=True)
        summed = torch.zeros(len(rows), table.shape[1]).index_add_(0, places, gradients)
        state.index_add_(0, rows, summed.square().mean(dim=1))
        table.index_add_(0, rows, summed / (state[rows].sqrt() + epsilon).unsqueeze(1), alpha=-rate)

    return adagrad
