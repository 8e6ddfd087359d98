"""Starts to read the rows on disk (``embedding.storage``) of a thread's next batches, which it has cut already."""

from __future__ import annotations

import numpy as np

from ssmpi.embedding import kernels
from ssmpi.embedding.client import HasIds, KeyLookup
from ssmpi.embedding.key_kernels import SHARED_ID
from ssmpi.embedding.shards import Tables
from ssmpi.runtime.bags import Bags
from ssmpi.runtime.compiled.hash_table import slots_for


class ReadAhead:
    """The rows of one thread's next batches in ``tables``, of PSs that are mapped; those of others read for themselves.
    Keys are looked up, but neither dated nor counted.
    """

    def __init__(self, tables: Tables) -> None:
        self._mapped, placement = [shard.rows for shard in tables.shards], tables.placement
        self._keys = KeyLookup(tables, 0, counts=False) if placement.keyed else None
        self._tables = placement.limits, placement.strides, placement.owners, placement.bases
        self._starts, self._room = np.zeros(placement.servers + 1, np.int64), 0

    def __call__(self, batch: HasIds) -> None:
        """Start to read the rows of a batch. A bad id is left for the pull to name."""
        ids = batch.ids
        if self._keys:
            found = np.asarray(self._keys.ids(batch))
            ids = np.where(found < 0, SHARED_ID, found)  # of a PS that is not mapped
        flat, bags = (ids.ids, ids.starts) if isinstance(ids, Bags) else (ids.reshape(-1), np.empty(0, np.int64))
        if self._room < ids.size:
            self._room, slots = ids.size, slots_for(ids.size)
            self._slots = np.full(slots, kernels.EMPTY, np.int64), np.empty(slots, np.int32)
            self._rows, self._inverse = np.empty(ids.size, np.int32), np.empty(ids.size, np.int32)
        bad = kernels.route(flat, bags, self._tables, self._slots, self._rows, self._inverse[: ids.size], self._starts)
        for server, rows in enumerate(self._mapped) if bad < 0 else ():
            if rows:
                rows.start_reading(self._rows[self._starts[server] : self._starts[server + 1]])


def read_ahead_of(tables: Tables) -> ReadAhead | None:
    """That of a thread, if any rows are mapped and lie on disk."""
    stored = tables.options.settings.storage and any(shard.rows for shard in tables.shards)
    return ReadAhead(tables) if stored else None
