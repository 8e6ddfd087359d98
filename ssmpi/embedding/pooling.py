"""Bags that embedding PSs pool before they send them: a PS sends one vector for its rows of a bag, and gets one
gradient. It does so for the tables for which that is less to send; rows at hand are pooled here.

A bag whose rows lie on several PSs is the sum of their partial sums, in the order in which the PSs first appear in it.
With one PS the result is that of a lookup by row, to the bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ssmpi.embedding import kernels, pooled_kernels, wire
from ssmpi.embedding.placement import Placement
from ssmpi.embedding.table import RowOptions
from ssmpi.runtime.bags import Bags
from ssmpi.runtime.compiled.aligned import aligned


@dataclass(frozen=True)
class TableTraffic:
    """Numbers of one table in one batch: ``rows``, different ones that ``ids`` look up; ``sums``, partial sums of bags
    on the PSs that hold it. ``width`` is that of a row.
    """

    ids: float
    rows: float
    sums: float
    width: int
    weighted: bool

    @classmethod
    def most(cls, placement: Placement, table: int, batch: int, width: int, *, weighted: bool) -> TableTraffic:
        """That of one table if all ids are different, in lists as long as on average."""
        length = placement.lengths[table]
        ids, stride = batch * length, int(placement.strides[table])
        return cls(ids, ids, batch * min(length, stride), width, weighted)

    def by_row(self, size: int) -> float:
        """Bytes of pulling the rows, whose numbers have this ``size``, and of pushing them, without the heads of
        messages.
        """
        return wire.pulled_bytes(0, self.rows, self.width, size) + wire.pushed_bytes(0, self.rows, self.width)

    @property
    def by_bag(self) -> float:
        """The same of the bags."""
        pulled = wire.pulled_bag_bytes(self.sums, self.ids, self.width, weighted=self.weighted)
        return pulled + wire.pushed_bag_bytes(self.sums, self.rows, self.ids, self.width, weighted=self.weighted)


def counted(placement: Placement, bags: Bags, width: int) -> list[TableTraffic]:
    """That of each table in the batch of these bags."""
    ids, lengths = bags.ids[bags.starts[0] : bags.starts[-1]], np.diff(bags.starts)
    bag = np.repeat(np.arange(len(lengths)), lengths)
    found = []
    for table, stride in enumerate(placement.strides):
        mine = bag % bags.features == table
        of_table = ids[mine].astype(np.int64)
        sums = np.unique(bag[mine] * stride + of_table % stride).size
        found.append(TableTraffic(of_table.size, np.unique(of_table).size, sums, width, bags.weights.size > 0))
    return found


def pooled_tables(placement: Placement, options: RowOptions, bags: Bags) -> np.ndarray:
    """Of which tables embedding PSs pool the bags, bool (tables,), judged by the batch of these bags. Those that have
    one id each are never pooled; ``embedding.pooling`` may force it for all others.
    """
    lists = (np.diff(bags.starts).reshape(-1, bags.features) != 1).any(axis=0)
    return chosen(options, lists, counted(placement, bags, options.layout.width))


def chosen(options: RowOptions, lists: np.ndarray, traffic: Sequence[TableTraffic]) -> np.ndarray:
    """As ``pooled_tables``, of the tables that ``lists`` bool (tables,) look up with this traffic."""
    if options.settings.pooling != "auto":
        return lists & (options.settings.pooling == "server")
    size = options.pulled_dtype.itemsize
    return lists & np.array([each.by_bag < each.by_row(size) for each in traffic])


class PoolingPlan:
    """Of one lookup, with room for ``most`` ids: which PSs are ``mapped`` here; ``pooled`` bool (features,): whose bags
    the others pool.
    """

    def __init__(self, most: int, width: int, mapped: Sequence[bool], pooled: np.ndarray) -> None:
        self._mapped, self._replies = np.array(mapped), aligned((most, width))
        self._pooled = ~self._mapped[:, None] & pooled

    def plan(self, starts: np.ndarray, inverse: np.ndarray, bags: np.ndarray, weights: np.ndarray) -> None:
        """Which partial sums each PS pools, and which rows it sends one by one; arguments as ``kernels.route`` and
        ``kernels.pool`` have them.
        """
        self._starts, servers = starts, len(self._pooled)
        owners = pooled_kernels.owners_of(starts)
        self._places, self._by_bag = pooled_kernels.places_of(bags, inverse, owners, starts, self._pooled)
        sums, ids = pooled_kernels.count_sums(bags, inverse, owners, self._by_bag, servers)
        singles = np.bincount(owners[~self._by_bag], minlength=servers)
        self._sum_starts, self._id_starts = (np.concatenate([[0], np.cumsum(each)]) for each in (sums, ids))
        self._reply_starts = np.concatenate([[0], np.cumsum(singles + sums)])
        self._sum_bags, self._sum_ends = np.empty((2, sums.sum()), np.int32)
        self._id_rows, self._id_weights = np.empty(ids.sum(), np.int32), np.empty(ids.sum() * bool(weights.size), "f4")
        self._terms = (
            np.empty(len(bags), np.int64), np.empty(len(inverse), np.int32), np.empty(len(weights), np.float32)
        )  # fmt: skip
        pooled_kernels.fill_sums(
            bags, inverse, weights, owners, self._places, self._by_bag,
            self._sum_starts[:-1], self._id_starts[:-1], self._reply_starts[:-1],
            self._sum_bags, self._sum_ends, self._id_rows, self._id_weights, *self._terms,
        )  # fmt: skip

    def _of(self, server: int) -> tuple[slice, slice, np.ndarray]:
        """The sums of a PS, their ids, and the unique rows that it sends one by one."""
        part = slice(int(self._starts[server]), int(self._starts[server + 1]))
        sums, ids = (slice(int(s[server]), int(s[server + 1])) for s in (self._sum_starts, self._id_starts))
        return sums, ids, part.start + np.flatnonzero(~self._by_bag[part])

    def request(self, server: int, unique: np.ndarray) -> tuple[np.ndarray, np.ndarray, int]:
        """The PULL to a PS, of the ``unique`` rows, which of the replies it fills, and how many rows that are."""
        sums, ids, singles = self._of(server)
        bags = wire.PulledBags(unique[self._id_rows[ids]], self._sum_ends[sums], self._id_weights[ids])
        reply = self._replies[self._reply_starts[server] : self._reply_starts[server + 1]]
        return wire.pull(unique[singles], bags if len(bags.ends) else None), reply, len(singles)

    def expand(self, unique: np.ndarray, values: np.ndarray) -> None:
        """Fill ``values`` from the replies, which have arrived, and the rows at hand, ``unique``."""
        for server in np.flatnonzero(self._mapped).tolist():
            part = slice(int(self._starts[server]), int(self._starts[server + 1]))
            self._replies[self._reply_starts[server] : self._reply_starts[server + 1]] = unique[part]
        ends, places, weights = self._terms
        kernels.pool(self._replies, places, ends, weights, values.reshape(-1, values.shape[2]))

    def pushes(self, unique: np.ndarray, gradients: np.ndarray) -> dict[int, tuple[np.ndarray, wire.PushedBags]]:
        """What goes to each PS that pools, of the ``unique`` rows: its single rows, as places among these, and its bags
        with their ``gradients``.
        """
        flat, found = gradients.reshape(-1, gradients.shape[2]), dict[int, tuple[np.ndarray, wire.PushedBags]]()
        for server in np.flatnonzero(np.diff(self._sum_starts)).tolist():
            sums, ids, singles = self._of(server)
            part = slice(int(self._starts[server]), int(self._starts[server + 1]))
            by_bag = np.empty((sums.stop - sums.start, flat.shape[1]), np.float32)
            kernels.copy(flat, self._sum_bags[sums], by_bag)
            found[server] = singles, wire.PushedBags(
                unique[part][self._by_bag[part]], by_bag, self._sum_ends[sums], self._places[self._id_rows[ids]],
                self._id_weights[ids],
            )  # fmt: skip
        return found
