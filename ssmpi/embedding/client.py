"""A trainer's end of pull and push. One ``Lookups`` a worker thread, so that nothing is shared between threads; a
``RowTransport`` decides whether the rows are in another rank or in this process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np

from ssmpi.core.aligned import aligned
from ssmpi.core.errors import TrainingError
from ssmpi.core.protocols import RowTransport
from ssmpi.embedding import kernels
from ssmpi.embedding.lookup import Lookup
from ssmpi.embedding.placement import Placement
from ssmpi.embedding.table import RowOptions


class HasIds(Protocol):
    """A batch, as far as its rows are concerned."""

    @property
    def ids(self) -> np.ndarray:
        """int32 (batch, features)."""


B = TypeVar("B", bound=HasIds)


@dataclass
class HeldRows:
    """The rows of a batch that had been pulled when its thread was cut: what is learned does not depend on cuts.

    ``keep()`` tells, once there are no more batches, whether the last one is for later. ``values`` are its rows,
    float32 (batch, features, width).
    """

    keep: Callable[[], bool]
    values: np.ndarray | None = None


class Lookups:
    """Pull and push of one worker thread, for Criteo's one id per feature. Not for use by two threads."""

    def __init__(
        self,
        transport: RowTransport,
        placement: Placement,
        options: RowOptions,
        thread: int,
        held: HeldRows | None = None,
    ) -> None:
        self._transport, self._placement, self._options, self._thread = transport, placement, options, thread
        self._held = held or HeldRows(lambda: False)
        self._lookups: list[Lookup] = []
        self._turn = 0
        self._keys = np.full(16, kernels.EMPTY, np.int64)
        self._places = np.empty(16, np.int32)
        self._summed = np.empty((0, options.layout.width), np.float32)

    def prefetched(self, batches: Iterable[B]) -> Iterator[tuple[B, Lookup]]:
        """Each batch with its rows; the next batch's rows are already on their way if ``prefetch`` is set."""
        if not self._options.settings.prefetch:
            for batch in batches:
                yield batch, self.pull(batch.ids)
            return
        waiting: tuple[B, Lookup] | None = None
        for batch in batches:
            asked = (batch, self.ask(batch.ids))
            if waiting:
                yield waiting[0], self._arrive_held(waiting[1])
            waiting = asked
        if waiting:
            rows = self._arrive_held(waiting[1])
            if self._held.keep():
                self._held.values = rows.values.copy()
            else:
                yield waiting[0], rows

    def pull(self, ids: np.ndarray) -> Lookup:
        """Fetch the rows for ids int32 (batch, features) and wait for them."""
        return self.arrive(self.ask(ids))

    def ask(self, ids: np.ndarray) -> Lookup:
        """Start fetching. At most two lookups of a thread may be under way or in use. TrainingError for a bad id."""
        lookup = self._next_lookup(len(ids))
        placement = self._placement
        bad = kernels.route(
            ids.reshape(-1), placement.limits, placement.strides, placement.owners, placement.bases,
            self._keys, self._places, lookup.rows, lookup.inverse, lookup.starts,
        )  # fmt: skip
        if bad >= 0:
            raise_bad_id(ids.reshape(-1), int(bad), placement)
        lookup.cut()
        self._transport.ask(lookup, self._thread)
        return lookup

    def arrive(self, lookup: Lookup) -> Lookup:
        """Wait for the rows; ``lookup.values`` then holds them."""
        self._transport.collect(lookup)
        kernels.expand(lookup.distinct, lookup.inverse, lookup.flat)
        return lookup

    def _arrive_held(self, lookup: Lookup) -> Lookup:
        """As ``arrive``; the first rows after a cut are those from before it."""
        self.arrive(lookup)
        if self._held.values is not None:
            values, self._held.values = self._held.values, None
            if values.shape == lookup.values.shape:  # not if the batch size was changed meanwhile
                lookup.values[...] = values
        return lookup

    def push(self, lookup: Lookup, gradients: np.ndarray, factor: float = 1.0) -> None:
        """Send gradients float32 (batch, features, width) of ``lookup.values``; those of one row are summed first."""
        summed = self._summed[: lookup.found]
        kernels.sum_by_row(gradients, lookup.inverse, summed)
        self._transport.update(lookup, summed, factor, self._thread)

    def _next_lookup(self, batch: int) -> Lookup:
        features = len(self._placement.cardinalities)
        size = batch * features
        if size > len(self._summed):
            width = self._options.layout.width
            self._lookups = [Lookup(batch, features, width, self._placement.servers) for _ in range(2)]
            self._summed = aligned((size, width))
            slots = 1 << (2 * size - 1).bit_length()
            self._keys, self._places = np.full(slots, kernels.EMPTY, np.int64), np.empty(slots, np.int32)
        self._turn = 1 - self._turn
        lookup = self._lookups[self._turn]
        if len(lookup.values) != batch:
            lookup.resize(batch)
        return lookup


def raise_bad_id(ids: np.ndarray, position: int, placement: Placement) -> None:
    """Raise TrainingError for an id outside its table; ids (batch * features,)."""
    row, feature = divmod(position, len(placement.cardinalities))
    raise TrainingError(
        f"id {ids[position]} of feature C{feature + 1} (row {row} of its batch) is beyond its table of "
        f"{placement.cardinalities[feature]} rows: the shard does not belong to this vocabulary; run "
        "'ssmpi-prepare verify' on the data folder"
    )
