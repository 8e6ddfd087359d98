"""How many distinct rows a batch asks for, and what that takes, counted in a few batches of the data."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from ssmpi.config import Config
from ssmpi.core.errors import DataError
from ssmpi.core.protocols import RowLookup
from ssmpi.data.reader import SplitReader, batches_in, shuffled
from ssmpi.embedding import wire
from ssmpi.embedding.client import Lookups
from ssmpi.embedding.lookup import Lookup
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
    found = [[part.stop - part.start for part in lookup.parts] for lookup in _lookups(config)]
    return [float(mean) for mean in np.mean(found, axis=0)]


def sent_bytes(config: Config) -> list[float]:
    """Bytes to each embedding PS in an iteration: requests of rows, or of bags, and their gradients. Less comes back.
    The mean over a few batches of the data.
    """
    found = list[list[float]]()
    for lookup in _lookups(config):
        gradients = np.zeros_like(lookup.values)
        times = lookup.occurrences() if config.tracking.counts else None
        summed = lookup.summed(gradients)
        by_bag = lookup.bag_pushes(gradients, 1.0, times)
        found.append([])
        for server, part in enumerate(lookup.parts):
            rows, counted = part.stop - part.start, config.tracking.counts
            pushed = by_bag[server].nbytes if server in by_bag else 0
            found[-1].append(
                lookup.request(server).payload.nbytes
                + (pushed or wire.pushed_bytes(1, rows, summed.shape[1], counted=counted))
            )
    return [float(mean) for mean in np.mean(found, axis=0)]


def _lookups(config: Config) -> Iterator[Lookup]:
    """The lookups of a few batches of the data, one after the other."""
    reader = SplitReader(Path(config.data.folder), config.data.train_split, config.data.block_rows)
    placement = placement_of(config)
    if placement.keyed:
        raise DataError(
            f"{config.data.folder}: rows of a batch are counted by id, and this data has keys: leave --predict out"
        )
    lookups = Lookups(_NoTransport(placement.servers), placement, config.rows, 0)
    size, seen = config.data.batch_size, 0
    for number, block in enumerate(reader.blocks):
        order = shuffled(config.run.seed, 2, 0, number, size=block.rows)
        for batch in batches_in(order, reader.read(block), size):
            yield lookups.ask(batch.ids)
            seen += 1
            if seen == SAMPLE:
                return
