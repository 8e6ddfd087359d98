"""A trainer's side of pull and push. Each worker thread has its own ``Lookups``, so threads share nothing; a
``RowTransport`` fetches the rows from another rank or from this process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import cycle
from typing import Any, Protocol, TypeVar

import numpy as np

from ssmpi.embedding.key_lookup import DistinctIds, KeyLookup
from ssmpi.embedding.lookup import Lookup, LookupBuffers, Room, all_mapped
from ssmpi.embedding.placement import Placement
from ssmpi.embedding.pooling import pooled_tables
from ssmpi.embedding.table import RowOptions
from ssmpi.runtime.bags import Bags
from ssmpi.runtime.errors import TrainingError
from ssmpi.runtime.protocols import RowTransport


class HasIds(Protocol):
    """The part of a batch that a lookup needs."""

    @property
    def ids(self) -> Any:
        """int32 (batch, features), of those without keys, or ``Bags``."""

    @property
    def keys(self) -> np.ndarray:
        """int64 (batch, keyed features)."""


B = TypeVar("B", bound=HasIds)
Ids = np.ndarray | Bags | DistinctIds


@dataclass
class PrefetchedRows:
    """The rows that a thread had prefetched for its next batch when its stream was interrupted. They are used when the
    thread resumes, so an interruption does not change what the model learns.

    At the end of the stream, ``keep()`` returns whether the last batch is left for later. ``values`` are its rows,
    float32 (batch, features, width).
    """

    keep: Callable[[], bool]
    values: np.ndarray | None = None


class Lookups:
    """Pull and push of one worker thread. Not for use by two threads. ``Ids`` are int32 (batch, features), or bags.
    ``keys`` finds the ids of batches with keyed features.
    """

    def __init__(
        self,
        transport: RowTransport,
        placement: Placement,
        options: RowOptions,
        thread: int,
        prefetched: PrefetchedRows | None = None,
        keys: KeyLookup | None = None,
    ) -> None:
        self._keys = keys
        self._transport, self._placement, self._options, self._thread = transport, placement, options, thread
        self._prefetched = prefetched or PrefetchedRows(lambda: False)
        self._lookups: Iterator[Lookup] = iter(())
        self._room = Room(-1, -1)

    def prefetched(self, batches: Iterable[B]) -> Iterator[tuple[B, Lookup]]:
        """Yield each batch with its rows. With ``prefetch``, the next batch's rows are already in flight."""
        if not self._options.settings.prefetch:
            for batch in batches:
                yield batch, self.pull(self._ids_of(batch))
            return
        waiting: tuple[B, Lookup] | None = None
        before = self._prefetched.values
        known = 0 if before is None else len(before)  # rows of the next batches that have been looked up
        for batch in batches:
            asked = batch, self.ask(self._ids_of(batch, again=known))
            known = max(0, known - len(batch.ids))
            if waiting:
                self.arrive(waiting[1])
                if self._prefetched.values is not None:
                    self._restore(waiting[1])
                yield waiting
            waiting = asked
        if waiting:
            rows = self._restore(self.arrive(waiting[1]))
            if self._prefetched.keep():
                self._prefetched.values = rows.values.copy()
            else:
                yield waiting

    def _ids_of(self, batch: HasIds, *, again: int = 0) -> Ids:
        ids: Ids = self._keys.ids(batch, again=again) if self._keys else batch.ids
        return ids

    def pull(self, ids: Ids) -> Lookup:
        """Fetch the rows for the ids of a batch and wait for them."""
        return self.arrive(self.ask(ids))

    def ask(self, ids: Ids) -> Lookup:
        """Start fetching. At most two lookups per thread may be in flight or in use. TrainingError for a bad id."""
        if len(ids) > self._room.batch or (isinstance(ids, Bags) and ids.size > self._room.ids):
            self._make_room(ids)
        lookup = next(self._lookups)
        found = lookup.pull(ids)
        if found < 0:
            raise_bad_id(ids, -1 - found, self._placement)
        if not lookup.all_mapped:
            self._transport.ask(lookup, self._thread)
        return lookup

    def arrive(self, lookup: Lookup) -> Lookup:
        """Wait for the rows; ``lookup.values`` then holds them."""
        if not lookup.all_mapped:
            self._transport.collect(lookup)
            lookup.expand()
        return lookup

    def _restore(self, lookup: Lookup) -> Lookup:
        """The first batch after an interruption gets the rows prefetched before it."""
        values, self._prefetched.values = self._prefetched.values, None
        if values is not None and values.shape == lookup.values.shape:  # not if the batch size was changed meanwhile
            lookup.values[...] = values
        return lookup

    def push(self, lookup: Lookup, gradients: np.ndarray, factor: float = 1.0) -> None:
        """Send gradients float32 (batch, features, width) with respect to ``lookup.values``, summed by row first."""
        self._transport.push(lookup, gradients, factor, self._thread)

    def _make_room(self, ids: Ids) -> None:
        placement, width = self._placement, self._options.layout.width
        count = ids.size * 5 // 4 if isinstance(ids, Bags) else ids.size
        if isinstance(ids, DistinctIds):
            count += ids.features + placement.servers + count // width  # shared rows, and the ids of awaited keys
        self._room = room = Room(max(len(ids), self._room.batch), max(count, self._room.ids, 1))
        buffers, mapped = LookupBuffers(room.ids, width), self._transport.mapped
        pooled = None
        if isinstance(ids, Bags) and not all_mapped(placement, mapped):
            tables = pooled_tables(placement, self._options, ids)
            pooled = tables if tables.any() else None
        self._lookups = cycle([Lookup(room, placement, width, buffers, mapped, pooled) for _ in range(2)])


MakeLookups = Callable[[RowTransport, Placement, RowOptions, int, PrefetchedRows | None, KeyLookup | None], Lookups]


def raise_bad_id(ids: Ids, position: int, placement: Placement) -> None:
    """Raise TrainingError for an id outside its table, by its position among those of the batch."""
    bag = position
    if isinstance(ids, Bags):
        position += int(ids.starts[0])
        bag = int(np.searchsorted(ids.starts, position, side="right")) - 1
    flat = ids.ids if isinstance(ids, Bags) else np.asarray(ids).reshape(-1)
    row, feature = divmod(bag, len(placement.cardinalities))
    raise TrainingError(
        f"id {flat[position]} of feature {placement.names[feature]} (row {row} of its batch) is beyond its table of "
        f"{placement.cardinalities[feature]} rows: the shard does not belong to this vocabulary; run "
        "'ssmpi-prepare verify' on the data folder"
    )
