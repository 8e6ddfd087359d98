"""Bit-reproducible training in one process and one thread with any number of embedding PSs, with the servers, rows,
kernels and model of real runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch

from ssmpi.config import Config
from ssmpi.data.batch import Batch
from ssmpi.data.reader import SplitReader, batches, batches_in, shuffled
from ssmpi.embedding.client import Lookups
from ssmpi.embedding.placement import place
from ssmpi.embedding.shards import local_tables
from ssmpi.embedding.table import Arena
from ssmpi.embedding.trackers import Tracking
from ssmpi.model.replica import Replica, dense_optimizer
from ssmpi.runtime.errors import TrainingError
from ssmpi.runtime.quality import Quality

Dense = list[np.ndarray]
COUNTED = Tracking("mfu")  # pushes say how many accesses each row has, whatever is made of that


class Batches:
    """The numbered batches of all passes, in an order that depends on the seed."""

    def __init__(self, config: Config) -> None:
        self._data, self._seed = config.data, config.run.seed
        self._reader = SplitReader(Path(config.data.folder), config.data.train_split, config.data.block_rows)
        self.cardinalities = self._reader.manifest.cardinalities
        self._blocks = [
            (a_pass, int(number))
            for a_pass in range(config.data.passes)
            for number in shuffled(self._seed, 0, a_pass, size=len(self._reader.blocks))
        ]
        counts = [-(-self._reader.blocks[number].rows // config.data.batch_size) for _, number in self._blocks]
        self._starts = [0, *np.cumsum(counts).tolist()]
        self.samples = self._reader.rows * config.data.passes

    def __len__(self) -> int:
        return int(self._starts[-1])

    def from_number(self, first: int) -> Iterator[Batch]:
        """The batches from number ``first`` on."""
        buffer = self._reader.buffer()
        for (a_pass, number), (start, end) in zip(self._blocks, pairwise(self._starts), strict=True):
            if first < end:
                block = self._reader.blocks[number]
                order = shuffled(self._seed, 1, a_pass, number, size=block.rows)
                skipped = max(0, first - start) * self._data.batch_size
                yield from batches_in(order[skipped:], self._reader.read(block, buffer), self._data.batch_size)


class Training:
    """A model and its rows on ``topology.embedding_ps`` servers, trained batch by batch. ``looked_up`` is the number of
    lookups of the last batch, ``updated`` the number of rows it changed.
    """

    def __init__(self, config: Config, cardinalities: tuple[int, ...]) -> None:
        torch.set_num_threads(1)
        self._config = config
        self.placement = place(cardinalities, config.topology.embedding_ps)
        self._replica = Replica(config.network, config.model.precision, config.run.seed)
        self._optimizer = dense_optimizer(config.dense, self._replica)
        self._model = self._replica.thread_model()
        # Each batch reads the rows after the previous update, and every PS gets messages.
        options = replace(config.rows, settings=replace(config.embedding, prefetch=False, shared_memory=False))
        self.looked_up = self.updated = 0
        servers = range(self.placement.servers)
        self.arenas = [Arena(options, self.placement, server, config.run.seed) for server in servers]
        self._lookups = Lookups(local_tables(*self.arenas, mapped=False, tracking=COUNTED), thread=0)

    def step(self, batch: Batch, samples: int) -> None:
        """Train on one batch; ``samples`` have been trained on before."""
        rows = self._lookups.pull(batch.ids)
        rows.number = samples
        _, by_rows = self._model.forward_backward(batch.dense, rows.values, batch.labels, samples)
        factor = self._config.schedule.factor(samples)
        self._lookups.push(rows, by_rows, factor)
        self.looked_up, self.updated = batch.ids.size, rows.unique_count
        self._optimizer.step(self._model, factor)

    def dense(self) -> Dense:
        """A copy of the dense weights and their optimizer's state."""
        return [values.copy() for values in self._dense()]

    def restore_dense(self, saved: Dense) -> None:
        """Restore a copy from ``dense``."""
        for live, values in zip(self._dense(), saved, strict=True):
            live[:] = values

    def quality(self) -> dict[str, float]:
        """Metrics on ``evaluate.final``; TrainingError if a score is not finite."""
        options, quality = self._config.evaluate, Quality()
        reader = SplitReader(Path(self._config.data.folder), options.final, 16 * options.batch_size)
        for block in reader.blocks:
            for batch in batches(reader.read(block), options.batch_size):
                loss = quality.add(self._model.score(batch.dense, self._lookups.pull(batch.ids).values), batch.labels)
                if not np.isfinite(loss):
                    raise TrainingError("training has diverged: lower dense.rate and embedding.rate")
        return quality.compute()

    def _dense(self) -> Dense:
        return [self._replica.vector, *self._optimizer.state().values()]
