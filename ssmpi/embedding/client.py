"""A trainer's side of pull and push. Each worker thread has its own ``Lookups``, so threads share nothing; a
``RowTransport`` fetches the rows from another rank or from this process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import cycle
from typing import Protocol, TypeVar

import numpy as np

from ssmpi.core.errors import TrainingError
from ssmpi.core.protocols import RowTransport
from ssmpi.embedding.key_lookup import KeyLookup
from ssmpi.embedding.lookup import Lookup, LookupBuffers
from ssmpi.embedding.placement import Placement
from ssmpi.embedding.table import RowOptions


class HasIds(Protocol):
    """The part of a batch that a lookup needs."""

    @property
    def ids(self) -> np.ndarray:
        """int32 (batch, features), of those without keys."""

    @property
    def keys(self) -> np.ndarray:
        """int64 (batch, keyed features)."""


B = TypeVar("B", bound=HasIds)


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
    """Pull and push of one worker thread, for Criteo's one id per feature. Not for use by two threads. ``keys`` finds
    the ids of batches with keyed features.
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
        self._most = 0

    def prefetched(self, batches: Iterable[B]) -> Iterator[tuple[B, Lookup]]:
        """Yield each batch with its rows. With ``prefetch``, the next batch's rows are already in flight."""
        if not self._options.settings.prefetch:
            for batch in batches:
                yield batch, self.pull(self._ids_of(batch))
            return
        waiting: tuple[B, Lookup] | None = None
        before = self._prefetched.values  # of the first batch, which has been looked up
        for batch in batches:
            known = before is not None and len(before) == len(batch.ids)
            asked, before = (batch, self.ask(self._ids_of(batch, again=known))), None
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

    def _ids_of(self, batch: HasIds, *, again: bool = False) -> np.ndarray:
        return self._keys.ids(batch, again=again) if self._keys else batch.ids

    def pull(self, ids: np.ndarray) -> Lookup:
        """Fetch the rows for ids int32 (batch, features) and wait for them."""
        return self.arrive(self.ask(ids))

    def ask(self, ids: np.ndarray) -> Lookup:
        """Start fetching. At most two lookups per thread may be in flight or in use. TrainingError for a bad id."""
        lookup = next(self._lookups) if len(ids) <= self._most else self._larger_lookup(len(ids))
        found = lookup.pull(ids)
        if found < 0:
            raise_bad_id(ids.reshape(-1), -1 - found, self._placement)
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

    def _larger_lookup(self, batch: int) -> Lookup:
        placement, width = self._placement, self._options.layout.width
        buffers = LookupBuffers(batch * len(placement.cardinalities), width)
        self._lookups = cycle([Lookup(batch, placement, width, buffers, self._transport.mapped) for _ in range(2)])
        self._most = batch
        return next(self._lookups)


MakeLookups = Callable[[RowTransport, Placement, RowOptions, int, PrefetchedRows | None, KeyLookup | None], Lookups]


def raise_bad_id(ids: np.ndarray, position: int, placement: Placement) -> None:
    """Raise TrainingError for an id outside its table; ids (batch * features,)."""
    row, feature = divmod(position, len(placement.cardinalities))
    raise TrainingError(
        f"id {ids[position]} of feature C{feature + 1} (row {row} of its batch) is beyond its table of "
        f"{placement.cardinalities[feature]} rows: the shard does not belong to this vocabulary; run "
        "'ssmpi-prepare verify' on the data folder"
    )
