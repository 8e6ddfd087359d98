"""How many distinct rows a batch asks for, counted in a few batches of the data."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ssmpi.config import Config
from ssmpi.core.errors import DataError
from ssmpi.core.protocols import RowLookup
from ssmpi.data.reader import SplitReader, batches_in, shuffled
from ssmpi.embedding.client import Lookups
from ssmpi.run.requirements import placement_of

SAMPLE = 20  # batches


class _NoTransport:
    """A transport that fetches nothing: only the location of rows is needed."""

    def __init__(self, servers: int) -> None:
        self.mapped = [np.empty(0, np.float32)] * (2 * servers)

    def ask(self, lookup: RowLookup, thread: int) -> None:
        """Fetch nothing."""

    def collect(self, lookup: RowLookup) -> None:
        """Nothing to wait for."""

    def push(self, lookup: RowLookup, gradients: object, factor: float, thread: int) -> None:
        """Nothing to update."""


def distinct_rows(config: Config) -> list[float]:
    """Distinct rows that a batch requests of each embedding PS: the mean over a few batches of the data."""
    reader = SplitReader(Path(config.data.folder), config.data.train_split, config.data.block_rows)
    placement = placement_of(config)
    if placement.keyed:
        raise DataError(
            f"{config.data.folder}: rows of a batch are counted by id, and this data has keys: leave --predict out"
        )
    lookups = Lookups(_NoTransport(placement.servers), placement, config.rows, 0)
    size, counts = config.data.batch_size, [0.0] * placement.servers
    seen = 0
    for number, block in enumerate(reader.blocks):
        order = shuffled(config.run.seed, 2, 0, number, size=block.rows)
        for batch in batches_in(order, reader.read(block), size):
            lookup = lookups.ask(batch.ids)
            counts = [count + part.stop - part.start for count, part in zip(counts, lookup.parts, strict=True)]
            seen += 1
            if seen == SAMPLE:
                return [count / seen for count in counts]
    return [count / max(1, seen) for count in counts]
