"""Training rows of local contenders: the rows of the shards that ssmpi reads, in memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ssmpi.config import Config
from ssmpi.data.batch import Batch
from ssmpi.data.reader import SplitReader, batches_in, shuffled
from ssmpi.embedding.client import Lookups
from ssmpi.embedding.local_tables import LocalTables
from ssmpi.embedding.placement import place
from ssmpi.embedding.table import Arena
from ssmpi.runtime.errors import DataError

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
        tables = LocalTables(Arena(self._config.rows, placement, 0, self._config.run.seed))
        lookups = Lookups(tables, placement, self._config.rows, thread)
        return [(batch, lookups.pull(batch.ids).values.copy()) for batch in self.batches(thread)]
