"""A network in plain PyTorch, twice. ``plain_step`` follows facebookresearch/dlrm's ``dlrm_s_pytorch.py``: autograd, an
``EmbeddingBag`` per feature with sparse gradients, PyTorch's optimizers, all cores inside every operator.
``tuned_step`` is the fastest that we could write: all tables in one, its rows updated by ``index_add_``, and a process
with a model of its own for each core, which exchange nothing. Both have the rows that ssmpi reads, in memory.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import cycle
from pathlib import Path
from typing import NamedTuple, cast

import numpy as np
import torch
from torch import nn

from ssmpi.config import Config
from ssmpi.data.batch import Batch
from ssmpi.data.reader import SplitReader, batches_in, shuffled
from ssmpi.embedding.client import Lookups
from ssmpi.embedding.placement import place
from ssmpi.embedding.shards import local_tables
from ssmpi.embedding.table import Arena
from ssmpi.model import reference
from ssmpi.model.network import Network
from ssmpi.model.parameters import by_name, initial_vector
from ssmpi.runtime.bags import Bags
from ssmpi.runtime.errors import DataError
from ssmpi.runtime.settings import require

BLOCK = 65_536  # rows: enough that no thread memorizes them within a few windows


class BatchSource:
    """Shuffled complete batches, from one block per thread."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._reader = SplitReader(Path(config.data.folder), config.data.train_split, BLOCK)
        self.cardinalities = self._reader.manifest.cardinalities

    def batches(self, thread: int) -> list[Batch]:
        """All complete batches of a thread's block; threads share blocks if there are too few."""
        number = thread % len(self._reader.blocks)
        block = self._reader.blocks[number]
        order = shuffled(self._config.run.seed, 2, 0, number, size=block.rows)
        size = self._config.data.batch_size
        if block.rows < size:
            raise DataError(f"{self._config.data.folder}: a shard of {block.rows} rows has no batch of {size}")
        return [b for b in batches_in(order, self._reader.read(block), size) if len(b) == size]

    def with_rows(self, thread: int) -> list[tuple[Batch, np.ndarray]]:
        """Batches with their embedding rows, float32 (batch, features, dim), as they are before training."""
        placement = place(self.cardinalities, 1)
        tables = local_tables(Arena(self._config.rows, placement, 0, self._config.run.seed))
        lookups = Lookups(tables, thread)
        return [(batch, lookups.pull(batch.ids).values.copy()) for batch in self.batches(thread)]


class Column(NamedTuple):
    """One feature of a batch: all ids int64, where each row's begin in them int64 (batch,), and the ids' weights
    float32, None if all are 1.
    """

    ids: torch.Tensor
    offsets: torch.Tensor
    weights: torch.Tensor | None


class PlainNetwork(nn.Module):
    """Logits (batch,) for dense (batch, features) and the columns of the sparse features."""

    def __init__(self, network: Network, cardinalities: tuple[int, ...], seed: int) -> None:
        super().__init__()
        self.network, width = network, network.rows.width
        self.tables = nn.ModuleList(nn.EmbeddingBag(rows, width, mode="sum", sparse=True) for rows in cardinalities)
        values = by_name(network.layout, initial_vector(network, seed, None))
        self.names = [name for name, _ in values]
        self.dense = nn.ParameterList(torch.from_numpy(array.copy()) for _, array in values)

    def forward(self, dense: torch.Tensor, columns: list[Column]) -> torch.Tensor:
        """Score a batch."""
        rows = torch.cat([table(*column) for table, column in zip(self.tables, columns, strict=True)], dim=1)
        parameters = dict(zip(self.names, self.dense, strict=True))
        return reference.logits(self.network, parameters, dense, rows.unflatten(1, (len(self.tables), -1)))


def collated(batch: Batch) -> tuple[torch.Tensor, list[Column], torch.Tensor]:
    """A batch in the format of the reference's data loader. Made before the window, so it is not timed."""
    if isinstance(batch.ids, Bags):
        columns = [_column(batch.ids, feature) for feature in range(batch.ids.features)]
    else:
        each = torch.arange(len(batch))
        columns = [Column(torch.from_numpy(ids.astype("int64")), each, None) for ids in batch.ids.T]
    return torch.from_numpy(batch.dense.copy()), columns, torch.from_numpy(batch.labels.copy())


def _column(bags: Bags, feature: int) -> Column:
    """One feature of a batch with lists."""
    lengths = np.diff(bags.starts)
    of_feature = np.repeat(np.arange(len(lengths)) % bags.features == feature, lengths)
    ids, weights = (each[bags.starts[0] : bags.starts[-1]] for each in (bags.ids, bags.weights))
    ends = np.cumsum(lengths[feature :: bags.features])
    return Column(
        torch.from_numpy(ids[of_feature].astype("int64")),
        torch.from_numpy(np.concatenate([[0], ends[:-1]])),
        torch.from_numpy(weights[of_feature]) if weights.size else None,
    )


Optimizers = dict[str, Callable[..., torch.optim.Optimizer]]
DENSE: Optimizers = {
    "sgd": torch.optim.SGD, "adagrad": torch.optim.Adagrad, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW,
}  # fmt: skip
ROWS: Optimizers = {
    "sgd": torch.optim.SGD, "rowwise_adagrad": torch.optim.Adagrad, "adam": torch.optim.SparseAdam,
}  # fmt: skip


def optimizer_of(kinds: Optimizers, name: str) -> Callable[..., torch.optim.Optimizer]:
    """PyTorch's optimizer; SettingsError if it has none."""
    require(name in kinds, f"PyTorch, beside which ssmpi is measured, has no optimizer {name!r} for this: set another")
    return kinds[name]


def plain_step(config: Config, source: BatchSource) -> Callable[[], object]:
    """One training step. Instead of row-wise Adagrad it uses PyTorch's Adagrad, with an accumulator per weight; its
    Adam of rows counts the steps of the table.
    """
    torch.manual_seed(config.run.seed)
    model = PlainNetwork(config.network, source.cardinalities, config.run.seed)
    optimizers = [
        optimizer_of(kinds, options.optimizer)(list(part.parameters()), lr=options.rate)
        for kinds, options, part in ((DENSE, config.dense, model.dense), (ROWS, config.embedding, model.tables))
    ]
    loss_of = nn.BCEWithLogitsLoss()
    batches = cycle([collated(batch) for batch in source.batches(0)])

    def step() -> None:
        dense, columns, labels = next(batches)
        loss = loss_of(model(dense, columns), labels)
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
        """The mean log-loss of a batch; ``rows`` (batch * features, width) are the gathered or pooled ones."""
        rows = rows.unflatten(0, (len(labels), len(self.offsets)))
        logits = reference.logits(self._network, self.parameters, dense, rows)
        return nn.functional.binary_cross_entropy_with_logits(logits, labels)


def tuned_step(config: Config, source: BatchSource, process: int) -> Callable[[], object]:
    """One training step of the given process. Row-wise Adagrad keeps one accumulator a row, as ssmpi's does."""
    torch.manual_seed(config.run.seed)
    model = MergedNetwork(config.network, source.cardinalities, config.run.seed)
    optimizer = optimizer_of(DENSE, config.dense.optimizer)(list(model.parameters.values()), lr=config.dense.rate)
    update = _row_update(config, model.table)
    batches = cycle([MergedBatch.of(batch, model.offsets) for batch in source.batches(process)])

    def step() -> None:
        batch = next(batches)
        rows = model.table.index_select(0, batch.ids).requires_grad_()
        model.loss(batch.dense, batch.pooled(rows), batch.labels).backward()
        optimizer.step()
        optimizer.zero_grad()
        update(batch.ids, cast("torch.Tensor", rows.grad))

    return step


class MergedBatch(NamedTuple):
    """``ids`` are row numbers of the merged table int64 (ids,); ``offsets`` say where those of each row and feature
    begin, None if there is one each; ``weights`` are theirs, None if all are 1. Made before the window.
    """

    dense: torch.Tensor
    ids: torch.Tensor
    offsets: torch.Tensor | None
    weights: torch.Tensor | None
    labels: torch.Tensor

    @classmethod
    def of(cls, batch: Batch, first: torch.Tensor) -> MergedBatch:
        """A batch over a table in which each feature's rows begin at ``first`` int64 (features,)."""
        dense, labels = torch.from_numpy(batch.dense.copy()), torch.from_numpy(batch.labels.copy())
        if not isinstance(batch.ids, Bags):
            return cls(dense, (torch.from_numpy(batch.ids.astype("int64")) + first).flatten(), None, None, labels)
        bags = batch.ids
        begin, end = bags.starts[[0, -1]]
        starts, lengths = torch.from_numpy(bags.starts - begin), torch.from_numpy(np.diff(bags.starts))
        ids = torch.from_numpy(bags.ids[begin:end].astype("int64"))
        ids += first.repeat(len(batch)).repeat_interleave(lengths)
        weights = torch.from_numpy(bags.weights[begin:end]) if bags.weights.size else None
        return cls(dense, ids, starts[:-1], weights, labels)

    def pooled(self, rows: torch.Tensor) -> torch.Tensor:
        """One vector for each row and feature, of the gathered ``rows`` (ids, width)."""
        if self.offsets is None:
            return rows
        numbers, weights = torch.arange(len(rows)), self.weights
        return nn.functional.embedding_bag(numbers, rows, self.offsets, mode="sum", per_sample_weights=weights)


def _row_update(config: Config, table: torch.Tensor) -> Callable[[torch.Tensor, torch.Tensor], object]:
    """Updates the rows of the given numbers with their gradients; duplicates add up."""
    rate, epsilon = config.embedding.rate, config.embedding.epsilon
    if config.embedding.optimizer == "sgd":
        return lambda ids, gradients: table.index_add_(0, ids, gradients, alpha=-rate)
    optimizer_of({name: ROWS[name] for name in ("sgd", "rowwise_adagrad")}, config.embedding.optimizer)
    state = torch.full((len(table),), config.embedding.initial_state)

    def adagrad(ids: torch.Tensor, gradients: torch.Tensor) -> None:
        rows, places = torch.unique(ids, return_inverse=True)
        summed = torch.zeros(len(rows), table.shape[1]).index_add_(0, places, gradients)
        state.index_add_(0, rows, summed.square().mean(dim=1))
        table.index_add_(0, rows, summed / (state[rows].sqrt() + epsilon).unsqueeze(1), alpha=-rate)

    return adagrad
