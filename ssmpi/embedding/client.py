"""A worker thread's pull and push of the rows of its batches. Threads share nothing: each has its own ``Lookups``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle, pairwise
from typing import Any, Protocol, TypeVar

import numpy as np

from ssmpi.embedding import key_lookup_kernels
from ssmpi.embedding.lookup import NOTHING_AWAITED, Awaited, DistinctIds, Lookup, LookupBuffers, Room, all_mapped
from ssmpi.embedding.placement import Placement
from ssmpi.embedding.pooling import pooled_tables
from ssmpi.embedding.shards import Tables
from ssmpi.runtime.bags import Bags
from ssmpi.runtime.compiled.kernel_args import KernelArgs
from ssmpi.runtime.errors import TrainingError
from ssmpi.runtime.protocols import PushRows


class HasIds(Protocol):
    """The part of a batch that a lookup needs."""

    @property
    def ids(self) -> Any:
        """int32 (batch, features), of those without keys, or ``Bags``; there are no bags beside keys."""

    @property
    def keys(self) -> np.ndarray:
        """int64 (batch, keyed features)."""

    @property
    def first_example(self) -> int:
        """The number of the first example."""


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
    ``prefetched`` keeps the rows pulled so far when its stream is interrupted; without it nothing is trained, so keys
    get no rows. ``push`` is another way to update rows than that of the tables.
    """

    def __init__(
        self, tables: Tables, thread: int, prefetched: PrefetchedRows | None = None, push: PushRows | None = None
    ) -> None:
        self._tables, self._thread, self._push = tables, thread, push or tables.push
        self._keys = KeyLookup(tables, thread, counts=prefetched is not None) if tables.placement.keyed else None
        self._prefetched = prefetched or PrefetchedRows(lambda: False)
        self._lookups: Iterator[Lookup] = iter(())
        self._room = Room(-1, -1)

    def prefetched(self, batches: Iterable[B]) -> Iterator[tuple[B, Lookup]]:
        """Yield each batch with its rows. With ``prefetch``, the next batch's rows are already in flight."""
        if not self._tables.options.settings.prefetch:
            for batch in batches:
                lookup = self.pull(self._ids_of(batch))
                lookup.number = batch.first_example
                yield batch, lookup
            return
        waiting: tuple[B, Lookup] | None = None
        before = self._prefetched.values
        known = 0 if before is None else len(before)  # rows of the next batches that have been looked up
        for batch in batches:
            asked = batch, self.ask(self._ids_of(batch, again=known))
            asked[1].number = batch.first_example
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
            raise_bad_id(ids, -1 - found, self._tables.placement)
        if not lookup.all_mapped:
            self._tables.ask(lookup, self._thread)
        return lookup

    def arrive(self, lookup: Lookup) -> Lookup:
        """Wait for the rows; ``lookup.values`` then holds them."""
        if not lookup.all_mapped:
            self._tables.collect(lookup)
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
        self._push(lookup, gradients, factor, self._thread)

    def _make_room(self, ids: Ids) -> None:
        tables, placement = self._tables, self._tables.placement
        width = tables.options.layout.width
        count = ids.size * 5 // 4 if isinstance(ids, Bags) else ids.size
        if isinstance(ids, DistinctIds):
            count += ids.features + placement.servers + count // width  # shared rows, and the ids of awaited keys
        self._room = room = Room(max(len(ids), self._room.batch), max(count, self._room.ids, 1))
        buffers, mapped = LookupBuffers(room.ids, width), tables.mapped
        pooled = None
        if isinstance(ids, Bags) and not (tables.all_mapped or all_mapped(placement, mapped)):
            chosen = pooled_tables(placement, tables.options, ids)
            pooled = chosen if chosen.any() else None
        self._lookups = cycle([Lookup(room, placement, width, buffers, mapped, pooled) for _ in range(2)])


MakeLookups = Callable[[Tables, int, PrefetchedRows | None, PushRows | None], Lookups]


class KeyLookup:
    """From the 64-bit keys of one thread's batches to the ids that a lookup routes, in maps that this process has
    mapped. New keys of these are asked for; those of other PSs are awaited together with their rows. Unless it
    ``counts``, nothing becomes known to a table: what has no row is read from the feature's shared row.
    """

    def __init__(self, tables: Tables, thread: int, *, counts: bool) -> None:
        self._tables, self._thread, self._counts = tables, thread, counts
        features, keyed = len(tables.placement.cardinalities), tables.placement.keyed
        plain = [feature for feature in range(features) if feature not in keyed]
        self._sources = np.empty(features, np.int64)
        self._sources[list(keyed)], self._sources[plain] = np.arange(len(keyed)), -1 - np.arange(len(plain))
        self._servers = len(tables.maps)
        by_feature = [maps[2 * k : 2 * k + 2] for k in range(len(keyed)) for maps in tables.maps]
        self._mapped = [bool(maps and maps[0].size) for maps in tables.maps]
        self._far = [not mapped for mapped in self._mapped]
        self._maps = KernelArgs((), [array for pair in by_feature for array in pair])
        self._rooms = [DistinctIds(0, features, self._servers) for _ in range(2)]  # of two lookups in flight

    def ids(self, batch: HasIds, *, again: int = 0) -> DistinctIds:
        """Those of a batch, valid until the next call but one. Its first rows, as many as are looked up ``again``, do
        not count.
        """
        rows = len(batch.keys)
        again = min(again, rows) if self._counts else rows
        ids = self._rooms.pop(0)
        if not ids.fits(rows):
            ids = DistinctIds(rows, ids.features, self._servers)
        self._rooms.append(ids)
        missed = key_lookup_kernels.translate(
            self._maps.words, ids.words.words, self._servers, self._sources, batch.ids, batch.keys, again
        )
        ids.awaited = NOTHING_AWAITED
        if missed and (again < rows or any(self._far)):
            self._ask(ids, missed, again)
        return ids

    def _ask(self, ids: DistinctIds, missed: int, again: int) -> None:
        """Of the keys that were ``missed``, ask for those of mapped PSs, if any rows count, and fill in their ids. The
        others are awaited together with their rows. The first rows do not count ``again``.
        """
        order, asked, starts = ids.asked(missed)
        parts = [asked[a:b] for a, b in pairwise(starts.tolist())]
        if again < len(ids) and any(self._mapped):
            found = self._tables.find(some(parts, self._mapped), self._thread)
            for start, answers in zip(starts, found, strict=False):
                key_lookup_kernels.fill_in(ids.words.words, order[start : start + len(answers)], answers)
        if any(self._far):
            if any(self._mapped):
                sizes = np.diff(starts)
                order = order[np.repeat(self._far, sizes)]
                starts = np.concatenate([[0], np.cumsum(sizes * self._far)])
            ids.awaited = Awaited(some(parts, self._far), order, starts)


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


def some(parts: Sequence[np.ndarray], which: Sequence[bool]) -> list[np.ndarray]:
    """Those parts, and nothing of the others."""
    return [part if wanted else part[:0] for part, wanted in zip(parts, which, strict=True)]
