"""How many distinct rows a batch asks for, and what that takes, counted in a few batches of the data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from ssmpi.config import Config
from ssmpi.data.reader import SplitReader, batches_in, shuffled
from ssmpi.embedding import wire
from ssmpi.embedding.client import Lookups
from ssmpi.embedding.key_kernels import NOT_FOUND, RESERVED
from ssmpi.embedding.key_lookup import KeyLookup
from ssmpi.embedding.lookup import Lookup
from ssmpi.embedding.placement import Placement
from ssmpi.runtime.protocols import RowLookup
from ssmpi.state.requirements import placement_of

SAMPLE = 20  # batches


class _OtherHosts:
    """Tables on other hosts, of which only the location of rows is known. Dynamic ones give each key a row at once,
    while there are some. ``requested`` are the bytes that each PS was asked with.
    """

    def __init__(self, placement: Placement) -> None:
        servers, keyed = placement.servers, len(placement.keyed)
        self.mapped, self.requested = [np.empty(0, np.float32)] * (2 * servers), [0] * servers
        self.maps = [[np.empty(0, np.int64)] * (2 * keyed)] * servers
        self._parts = [placement.keyed_parts_of(server) for server in range(servers)]
        self._rows = [[dict[int, int]() for _ in parts] for parts in self._parts]

    def find(self, asked: Sequence[np.ndarray], thread: int) -> list[np.ndarray]:
        """As ``KeyTables``: all keys are awaited with their rows."""
        raise AssertionError("no PS is mapped")

    def ask(self, lookup: RowLookup, thread: int) -> None:
        """Find rows of keys; fetch nothing."""
        self.requested = [0] * len(self.requested)
        for server, rows in enumerate(lookup.parts):
            if rows.start < rows.stop:
                kind, payload, reply, _ = lookup.request(server)
                self.requested[server] = payload.nbytes
                if kind == wire.PULL_KEYS:
                    _, asked = wire.read_pull_keys(payload)
                    numbers = [self._row(server, feature, key) for key, feature, _ in asked.tolist()]
                    reply.view(np.int32)[1 : 1 + len(numbers)] = numbers

    def _row(self, server: int, feature: int, key: int) -> int:
        rows, part = self._rows[server][feature], self._parts[server][feature]
        row = rows.setdefault(key, RESERVED + len(rows))
        return part.base + row if row < part.rows else NOT_FOUND

    def collect(self, lookup: RowLookup) -> None:
        """Nothing to wait for."""

    def push(self, lookup: RowLookup, gradients: object, factor: float, thread: int) -> None:
        """Nothing to update."""


def distinct_rows(config: Config) -> list[float]:
    """Distinct rows that a batch requests of each embedding PS: the mean over a few batches of the data. Each key of a
    dynamic table counts as if it had a row, while there is room: at most what a run asks for.
    """
    tables = _OtherHosts(placement_of(config))
    found = [[part.stop - part.start for part in lookup.parts] for lookup in _lookups(config, tables)]
    return [float(mean) for mean in np.mean(found, axis=0)]


def sent_bytes(config: Config) -> list[float]:
    """Bytes to each embedding PS of another host in an iteration: requests of rows, by number or by key, or of bags,
    and their gradients. Less comes back. The mean over a few batches of the data.
    """
    found, tables = list[list[float]](), _OtherHosts(placement_of(config))
    for lookup in _lookups(config, tables):
        gradients = np.zeros_like(lookup.values)
        times = lookup.occurrences() if config.tracking.counts else None
        summed = lookup.summed(gradients)
        by_bag = lookup.bag_pushes(gradients, 1.0, times)
        found.append([])
        for server, part in enumerate(lookup.parts):
            rows, counted = part.stop - part.start, config.tracking.counts
            pushed = by_bag[server].nbytes if server in by_bag else 0
            found[-1].append(
                tables.requested[server] + (pushed or wire.pushed_bytes(1, rows, summed.shape[1], counted=counted))
            )
    return [float(mean) for mean in np.mean(found, axis=0)]


def _lookups(config: Config, tables: _OtherHosts) -> Iterator[Lookup]:
    """The lookups of a few batches of the data, one after the other, over these ``tables``."""
    reader = SplitReader(Path(config.data.folder), config.data.train_split, config.data.block_rows)
    placement = placement_of(config)
    keys = KeyLookup(tables, len(placement.cardinalities), placement.keyed, 0, counts=True)
    lookups = Lookups(tables, placement, config.rows, 0)
    size, seen = config.data.batch_size, 0
    for number, block in enumerate(reader.blocks):
        order = shuffled(config.run.seed, 2, 0, number, size=block.rows)
        for batch in batches_in(order, reader.read(block), size):
            yield lookups.pull(keys.ids(batch) if placement.keyed else batch.ids)
            seen += 1
            if seen == SAMPLE:
                return
