"""Which tables' bags embedding PSs pool before they send them: those for which that is less to send."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ssmpi.embedding import wire
from ssmpi.embedding.placement import Placement
from ssmpi.embedding.table import RowOptions


@dataclass(frozen=True)
class TableTraffic:
    """Expected numbers of one table in one batch. ``rows``: different ones that ``ids`` look up, if all of the table's
    are alike, which is most; ``sums``: partial sums of ``bags`` on the PSs that hold it. ``width`` is that of a row.
    """

    ids: float
    rows: float
    sums: float
    width: int
    weighted: bool

    @classmethod
    def of(cls, placement: Placement, table: int, batch: int, width: int, *, weighted: bool) -> TableTraffic:
        """That of one table."""
        count, length = placement.cardinalities[table], placement.lengths[table]
        stride, ids = int(placement.strides[table]), batch * length
        rows = count * -np.expm1(ids * np.log1p(-1 / count)) if count > 1 else min(1.0, ids)
        held = min(1.0, length) if stride == 1 else stride * -np.expm1(length * np.log1p(-1 / stride))
        return cls(ids, float(rows), batch * float(held), width, weighted)

    @property
    def by_row(self) -> float:
        """Bytes of pulling and pushing the rows."""
        return wire.pulled_bytes(self.rows, self.width) + wire.pushed_bytes(0, self.rows, self.width)

    @property
    def by_bag(self) -> float:
        """Bytes of pulling and pushing the bags, without the heads of messages."""
        pulled = wire.pulled_bag_bytes(0, self.sums, self.ids, self.width, weighted=self.weighted) - 8
        numbers = self.sums, self.rows, self.ids
        return pulled + wire.pushed_bag_bytes(0, *numbers, self.width, weighted=self.weighted) - 16


def pooled_tables(placement: Placement, options: RowOptions, batch: int, *, weighted: bool) -> np.ndarray:
    """Of which tables embedding PSs pool the bags, bool (tables,), for batches of so many rows; ``weighted``: ids have
    weights. ``embedding.pooling`` may force it for all lists.
    """
    lists = np.array(placement.lengths) != 1.0
    if options.settings.pooling != "auto":
        return lists & (options.settings.pooling == "server")
    width = options.layout.width
    found = [TableTraffic.of(placement, t, batch, width, weighted=weighted) for t in range(len(lists))]
    return lists & np.array([each.by_bag < each.by_row for each in found])
