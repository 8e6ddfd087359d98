"""The rows of one batch: the unique rows, and the rows as the model reads them, one per id or pooled by bag."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ssmpi.embedding import kernels, lookup_kernels, precision, wire
from ssmpi.embedding.key_lookup_kernels import spare_rows
from ssmpi.embedding.placement import Placement
from ssmpi.embedding.pooling import PoolingPlan
from ssmpi.runtime.bags import Bags
from ssmpi.runtime.compiled.aligned import aligned
from ssmpi.runtime.compiled.hash_table import slots_for
from ssmpi.runtime.compiled.kernel_args import KernelArgs
from ssmpi.runtime.protocols import MPIRequest


class Awaited(NamedTuple):
    """Keys whose ids come with their rows: ``asked`` of each PS, as ``Tables.find`` has it, and their ``places`` in
    that order (feature * batch + number), int64 (n,); those of each PS begin at ``starts``, int64 (servers + 1,).
    """

    asked: Sequence[np.ndarray]
    places: np.ndarray
    starts: np.ndarray


NOTHING_AWAITED = Awaited((), *np.empty((2, 0), np.int64))


class DistinctIds:
    """The ids of a batch of ``rows`` rows and so many ``features``, each distinct one once: ``words`` are the room of
    ``key_lookup_kernels``. As an array they are int32 (rows, features). Those that are ``awaited`` are AWAITED.
    """

    def __init__(self, rows: int, features: int, servers: int) -> None:
        self.awaited = NOTHING_AWAITED
        self._most, self._rows, self.features = rows, rows, features
        most, slots = rows * features, slots_for(2 * rows)
        kinds = [(most + 1, np.int64), (most, np.int32), (features, np.int64), (most, np.int32), (slots, np.int32)]
        kinds += [(most, np.int64), (most, np.int64), (3 * most, np.int64), (servers + 1, np.int64)]
        kinds += [(most, np.int32), (features, np.int64)]
        self._arrays = [np.empty(size, kind) for size, kind in kinds]
        self.words = KernelArgs((), self._arrays)

    def fits(self, rows: int) -> bool:
        """Be those of so many rows; whether there is room for them."""
        self._rows = rows
        return rows <= self._most

    def __len__(self) -> int:
        return self._rows

    @property
    def size(self) -> int:
        """Of the array."""
        return self._rows * self.features

    def asked(self, missed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Of so many keys that were missed, ordered by PS, places int64 (missed,), what to ask for, int64 (missed, 3),
        and where each PS's begin, int64 (servers + 1,).
        """
        order, asked, starts = self._arrays[6:9]
        return order[:missed], asked[: 3 * missed].reshape(missed, 3), starts

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        _, found, _, places, *_ = (array[: self.size] for array in self._arrays)
        lines = np.arange(self.features)[:, None] * self._rows
        return found[lines + places.reshape(self.features, self._rows)].T.astype(dtype or np.int32)


class Room(NamedTuple):
    """For how many rows of a batch, and how many ids or unique rows in all."""

    batch: int
    ids: int


def all_mapped(placement: Placement, mapped: Sequence[np.ndarray]) -> bool:
    """Whether all rows that there are are among the ``mapped`` weights and states of each PS."""
    return all(array.size or not placement.rows_of(server) for server, array in enumerate(mapped[::2]))


class LookupBuffers:
    """Buffers to route at most ``ids`` ids and sum their gradients, shared by the lookups of a thread."""

    def __init__(self, ids: int, width: int) -> None:
        slots = slots_for(ids)
        self.keys, self.places = np.full(slots, kernels.EMPTY, np.int64), np.empty(slots, np.int32)
        self.summed = aligned((ids, width))


class Lookup:
    """The rows of one batch, in flight or arrived. ``unique_count`` is the number of unique rows; after their arrival
    ``values`` float32 (batch, features, dim) has a row per id, or the pooled rows of each bag, zeros for an empty one.
    ``mapped`` are the weights and optimizer state of each PS in turn, empty arrays where this process has not mapped
    them; ``all_mapped`` if it has all of them, so that there is nothing to wait for. Rows of 16 bits are rounded by the
    ``number`` of the batch's first example when its gradients are pushed. ``pooled`` bool (features,): whose
    bags PSs pool if their rows are not mapped here.
    """

    def __init__(
        self, room: Room, placement: Placement, width: int, buffers: LookupBuffers, mapped: Sequence[np.ndarray],
        pooled: np.ndarray | None = None,
    ) -> None:  # fmt: skip
        self._features = len(placement.cardinalities)
        batch, most = room
        self.rows, self._inverse = np.empty(most, np.int32), np.empty(most, np.int32)
        self.starts = np.zeros(placement.servers + 1, np.int64)
        self.unique, self._summed = aligned((most, width)), buffers.summed
        self._values = self.values = aligned((batch, self._features, width))
        self.unique_count, self.batch, self._count, self.number = 0, batch, batch * self._features, 0
        self.mapped = [bool(array.size) for array in mapped[::2]]
        self.all_mapped = all_mapped(placement, mapped)
        self._like = mapped[0].dtype.type()  # a number of the type of all rows
        self._replies = np.empty(0 if self._like.itemsize == 4 or self.all_mapped else self.unique.nbytes, np.uint8)
        self._arriving = list[tuple[wire.PulledLayout, np.ndarray, np.ndarray]]()  # replies, and where they go
        self.requests: list[MPIRequest] = []
        self._words, self._awaited = np.empty(0, np.int64), NOTHING_AWAITED  # of distinct ids
        self._bags = np.empty(0, np.int64), np.empty(0, np.float32)  # where they begin, and the weights of their ids
        self._pooling = None if pooled is None else PoolingPlan(most, width, self.mapped, pooled)
        self._args = KernelArgs(
            (),
            (
                placement.limits, placement.strides, placement.owners, placement.bases, buffers.keys, buffers.places,
                self.rows, self._inverse, self.starts, self.unique, self._values, self._summed, *mapped,
            ),
        )  # fmt: skip

    def fit(self, batch: int) -> None:
        """Be a lookup of so many rows, at most as many as there is room for."""
        if batch != self.batch:
            self.batch, self.values, self._count = batch, self._values[:batch], batch * self._features

    def pull(self, ids: Any) -> int:
        """Route ids int32 (batch, features), ``Bags`` or ``DistinctIds`` to PSs and fetch the rows that this process
        can access. Bags must not change until their gradients have been pushed. Returns the number of unique rows,
        ``unique_count``; for an id outside its table, -1 minus its position.
        """
        self.fit(len(ids))
        self._arriving = []
        if isinstance(ids, DistinctIds):
            return self._pull_distinct(ids)
        flat = ids
        if isinstance(ids, Bags):
            self._bags, flat = (ids.starts, ids.weights[ids.starts[0] : ids.starts[-1]]), ids.ids
            self._count = ids.size
        self.unique_count = count = lookup_kernels.pull(
            self._args.words, flat, *self._bags, self.all_mapped, self._like
        )
        if count >= 0 and self._pooling:
            self._pooling.plan(self.starts, self._inverse[: self._count], *self._bags)
        return count

    def _pull_distinct(self, ids: DistinctIds) -> int:
        """As ``pull``. Until they have arrived, ``rows`` and ``starts`` are as ``route_distinct`` has them."""
        self._words, self._awaited = ids.words.words, ids.awaited
        self.unique_count = count = lookup_kernels.pull_distinct(
            self._args.words, self._words, len(ids), *self._awaited[1:], self.all_mapped, self._like
        )
        return count

    def expand(self) -> None:
        """Fill ``values`` from the rows, which have arrived; once for each pull."""
        for layout, reply, place in self._arriving:
            rows, more = layout.split(reply)
            precision.convert(rows.reshape(-1), place[: layout.rows].reshape(-1))
            place[layout.rows :] = more
        if self._awaited.asked:
            awaited, self._awaited = self._awaited[1:], NOTHING_AWAITED
            self.unique_count = lookup_kernels.expand_distinct(self._args.words, self._words, self._count, *awaited)
        elif self._pooling:
            self._pooling.expand(self.unique, self.values)
        else:
            lookup_kernels.expand(self._args.words, self._count, *self._bags)

    def push(self, gradients: np.ndarray, optimizer: np.ndarray, factor: float) -> None:
        """Sum gradients float32 (batch, features, width) with respect to ``values`` by row, and update the rows that
        this process can access by an optimizer's numbers, at ``factor`` times the learning rate.
        """
        lookup_kernels.push(self._args.words, gradients, *self._bags, optimizer, factor, self._like, self.number)

    def summed(self, gradients: np.ndarray) -> np.ndarray:
        """Gradients (as in ``push``) summed by row, float32 (unique rows, width); valid until another lookup of this
        thread sums its own.
        """
        lookup_kernels.sum_gradients(self._args.words, gradients, *self._bags)
        return self._summed[: self.unique_count]

    def request(self, server: int) -> tuple[np.ndarray, np.ndarray]:
        """The PULL to a PS, and where its reply goes: its rows, to their places in ``unique``, or as planned."""
        if self._pooling:
            message, place, rows = self._pooling.request(server, self.rows)
            return message, self._reply(place, rows)
        start, stop = self.starts[server : server + 2].tolist()
        keys = self._awaited.asked[server] if self._awaited.asked else wire.NO_KEYS
        known = stop - spare_rows(len(keys), self.unique.shape[1]) if len(keys) else stop
        reply = self._reply(self.unique[start:stop], known - start + len(keys))
        return wire.pull(self.rows[start:known], keys=keys), reply

    def _reply(self, place: np.ndarray, rows: int) -> np.ndarray:
        """Where the reply goes that fills a ``place`` float32 (n, width), so many ``rows`` of which come as they are
        kept.
        """
        if not self._replies.size:
            return place
        layout = wire.PulledLayout(rows, len(place) - rows, place.shape[1], self._like.dtype)
        start = sum(reply.size for _, reply, _ in self._arriving)
        reply = self._replies[start : start + layout.size]
        self._arriving.append((layout, reply, place))
        return reply

    def pushed_bags(self, gradients: np.ndarray) -> dict[int, tuple[np.ndarray, wire.PushedBags]]:
        """What goes to each PS that pools, in place of gradients by row (``summed``): its single rows, as places among
        the unique ones, and its bags.
        """
        return self._pooling.pushes(self.rows, gradients) if self._pooling else {}

    @property
    def pools(self) -> bool:
        """Whether PSs pool some of its bags."""
        return self._pooling is not None

    @property
    def parts(self) -> list[slice]:
        """The slice of the unique rows that belongs to each PS."""
        return [slice(start, stop) for start, stop in itertools.pairwise(self.starts.tolist())]

    def occurrences(self) -> np.ndarray:
        """int32 (unique rows,): how often each unique row occurs in the batch."""
        times = np.empty(self.unique_count, np.int32)
        kernels.occurrences(self._inverse[: self._count], times)
        return times
