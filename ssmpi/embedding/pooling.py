"""Chooses the tables whose bags embedding PSs pool before sending: those where that sends fewer bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ssmpi.embedding import wire
from ssmpi.embedding.placement import Placement
from ssmpi.embedding.table import RowOptions
from ssmpi.runtime.bags import Bags


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

    @property
    def by_row(self) -> float:
        """Bytes of pulling and pushing the rows, without the heads of messages."""
        return wire.pulled_bytes(0, self.rows, self.width) + wire.pushed_bytes(0, self.rows, self.width)

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
    return lists & np.array([each.by_bag < each.by_row for each in traffic])
