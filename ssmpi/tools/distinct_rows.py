"""How many distinct rows a batch asks for, and what that takes, counted in a few batches of the data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from ssmpi.config import Config
from ssmpi.core.protocols import RowLookup
from ssmpi.data.reader import SplitReader, batches_in, shuffled
from ssmpi.embedding import wire
from ssmpi.embedding.client import Lookups
from ssmpi.embedding.key_kernels import RESERVED, SHARED_ID
from ssmpi.embedding.key_lookup import KeyLookup
from ssmpi.embedding.lookup import Lookup
from ssmpi.embedding.placement import Placement
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


class _EveryKey:
    """Dynamic tables on other hosts that give each key a row at once, while there are some. ``asked`` is how many keys
    each PS was asked for.
    """

    def __init__(self, placement: Placement) -> None:
        self._servers, self.asked = placement.servers, [0] * placement.servers
        self._most = [placement.cardinalities[table] // placement.servers for table in placement.keyed]
        self._rows = [[dict[int, int]() for _ in placement.keyed] for _ in range(placement.servers)]
        self.maps = [[np.empty(0, np.int64)] * (2 * len(placement.keyed))] * placement.servers

    def find(self, asked: Sequence[np.ndarray], thread: int) -> list[np.ndarray]:
        """As ``KeyTables``."""
        self.asked = [len(each) for each in asked]
        return [
            np.array([self._id(server, feature, key) for key, feature, _ in each.tolist()], np.int32)
            for server, each in enumerate(asked)
        ]

    def _id(self, server: int, feature: int, key: int) -> int:
        rows = self._rows[server][feature]
        row = rows.setdefault(key, RESERVED + len(rows))
        return row * self._servers + server if row < self._most[feature] else SHARED_ID


def distinct_rows(config: Config) -> list[float]:
    """Distinct rows that a batch requests of each embedding PS: the mean over a few batches of the data. Each key of a
    dynamic table counts as if it had a row, while there is room: at most what a run asks for.
    """
    keys = _EveryKey(placement_of(config))
    found = [[part.stop - part.start for part in lookup.parts] for lookup in _lookups(config, keys)]
    return [float(mean) for mean in np.mean(found, axis=0)]


def sent_bytes(config: Config) -> list[float]:
    """Bytes to each embedding PS of another host in an iteration: keys whose rows it is asked for, requests of rows, or
    of bags, and their gradients. Less comes back. The mean over a few batches of the data.
    """
    found, keys = list[list[float]](), _EveryKey(placement_of(config))
    for lookup in _lookups(config, keys):
        gradients = np.zeros_like(lookup.values)
        times = lookup.occurrences() if config.tracking.counts else None
        summed = lookup.summed(gradients)
        by_bag = lookup.bag_pushes(gradients, 1.0, times)
        found.append([])
        for server, part in enumerate(lookup.parts):
            rows, counted = part.stop - part.start, config.tracking.counts
            pushed = by_bag[server].nbytes if server in by_bag else 0
            found[-1].append(
                wire.found_bytes(keys.asked[server])
                + lookup.request(server).payload.nbytes
                + (pushed or wire.pushed_bytes(1, rows, summed.shape[1], counted=counted))
            )
    return [float(mean) for mean in np.mean(found, axis=0)]


def _lookups(config: Config, tables: _EveryKey) -> Iterator[Lookup]:
    """The lookups of a few batches of the data, one after the other, over these dynamic ``tables``."""
    reader = SplitReader(Path(config.data.folder), config.data.train_split, config.data.block_rows)
    placement = placement_of(config)
    keys = KeyLookup(tables, len(placement.cardinalities), placement.keyed, 0, counts=True)
    lookups = Lookups(_NoTransport(placement.servers), placement, config.rows, 0)
    size, seen = config.data.batch_size, 0
    for number, block in enumerate(reader.blocks):
        order = shuffled(config.run.seed, 2, 0, number, size=block.rows)
        for batch in batches_in(order, reader.read(block), size):
            tables.asked = [0] * placement.servers
            yield lookups.ask(keys.ids(batch) if placement.keyed else batch.ids)
            seen += 1
            if seen == SAMPLE:
                return
