"""A lookup of bags of which embedding PSs pool some before they send them: a PS sends one vector for its rows of a bag,
and gets one gradient. It does so for the tables of ``pooling.pooled_tables``; rows at hand are pooled here.

A bag whose rows lie on several PSs is the sum of their partial sums, in the order in which the PSs first appear in it.
With one PS the result is that of ``BagLookup``, to the bit.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ssmpi.embedding import bag_kernels, pooled_kernels, wire
from ssmpi.embedding.bag_lookup import BagLookup
from ssmpi.embedding.kernels import gather
from ssmpi.embedding.lookup import LookupBuffers, Room
from ssmpi.embedding.placement import Placement
from ssmpi.runtime.bags import Bags
from ssmpi.runtime.compiled.aligned import aligned
from ssmpi.runtime.protocols import Request


class PooledLookup(BagLookup):
    """``pooled`` bool (features,): whose bags PSs pool if their rows are not mapped here."""

    def __init__(
        self, room: Room, placement: Placement, width: int, buffers: LookupBuffers, mapped: Sequence[np.ndarray],
        pooled: np.ndarray,
    ) -> None:  # fmt: skip
        super().__init__(room, placement, width, buffers, mapped)
        self._replies = aligned((room.ids, width))
        self._pooled = ~np.array(self.mapped)[:, None] & pooled

    def pull(self, ids: Bags) -> int:
        """As that of ``Lookup``."""
        count = super().pull(ids)
        if count >= 0:
            self._plan()
        return count

    def _plan(self) -> None:
        servers, inverse, weights = len(self._pooled), self._inverse[: self._count], self._weights
        owners = pooled_kernels.owners_of(self.starts)
        self._places, self._by_bag = rows = pooled_kernels.places_of(
            self._bags, inverse, owners, self.starts, self._pooled
        )
        sums, ids = pooled_kernels.count_sums(self._bags, inverse, owners, self._by_bag, servers)
        singles = np.bincount(owners[~self._by_bag], minlength=servers)
        self._sum_starts, self._id_starts = (np.concatenate([[0], np.cumsum(each)]) for each in (sums, ids))
        self._reply_starts = np.concatenate([[0], np.cumsum(singles + sums)])
        self._sum_bags, self._sum_ends = np.empty((2, sums.sum()), np.int32)
        self._id_rows, self._id_weights = np.empty(ids.sum(), np.int32), np.empty(ids.sum() * bool(weights.size), "f4")
        self._terms = (
            np.empty(len(self._bags), np.int64), np.empty(self._count, np.int32), np.empty(len(weights), np.float32)
        )  # fmt: skip
        pooled_kernels.fill_sums(
            self._bags, inverse, owners, rows, (self._sum_starts[:-1], self._id_starts[:-1], self._reply_starts[:-1]),
            (self._sum_bags, self._sum_ends), (self._id_rows, self._id_weights), self._terms, weights,
        )  # fmt: skip

    def _of(self, server: int) -> tuple[slice, slice, np.ndarray]:
        """The sums of a PS, their ids, and the unique rows that it sends one by one."""
        part = slice(int(self.starts[server]), int(self.starts[server + 1]))
        sums, ids = (slice(int(s[server]), int(s[server + 1])) for s in (self._sum_starts, self._id_starts))
        return sums, ids, part.start + np.flatnonzero(~self._by_bag[part])

    def request(self, server: int) -> Request:
        """What to ask a PS for, and where its reply goes."""
        sums, ids, singles = self._of(server)
        reply = self._replies[self._reply_starts[server] : self._reply_starts[server + 1]]
        if sums.start == sums.stop:
            return Request(wire.PULL, self.rows[singles], reply)
        rows = self.rows[singles], self.rows[self._id_rows[ids]]
        return Request(wire.PULL_BAGS, wire.pull_bags(*rows, self._sum_ends[sums], self._id_weights[ids]), reply)

    def expand(self) -> None:
        """Fill ``values`` from the replies, which have arrived, and the rows at hand."""
        for server in np.flatnonzero(self.mapped).tolist():
            part = slice(int(self.starts[server]), int(self.starts[server + 1]))
            self._replies[self._reply_starts[server] : self._reply_starts[server + 1]] = self.unique[part]
        ends, places, weights = self._terms
        out = self.values.reshape(-1, self.values.shape[2])
        bag_kernels.pool(self._replies, places, ends, weights, out)

    def bag_pushes(self, gradients: np.ndarray, factor: float, times: np.ndarray | None) -> dict[int, np.ndarray]:
        """The PUSH_BAGS messages, by PS, to those that pool; ``times``: occurrences of the unique rows, or None.
        ``summed`` has been called for the same gradients.
        """
        flat, summed = gradients.reshape(-1, gradients.shape[2]), self._summed
        messages = {}
        for server in np.flatnonzero(np.diff(self._sum_starts)).tolist():
            sums, ids, singles = self._of(server)
            part = slice(int(self.starts[server]), int(self.starts[server + 1]))
            pooled = part.start + np.flatnonzero(self._by_bag[part])
            by_bag = np.empty((sums.stop - sums.start, flat.shape[1]), np.float32)
            gather(flat, self._sum_bags[sums], by_bag)
            bags = wire.PushedBags(
                self.rows[pooled], by_bag, self._sum_ends[sums], self._places[self._id_rows[ids]], self._id_weights[ids]
            )
            counted = None if times is None else times[singles]
            messages[server] = wire.push_bags(factor, self.rows[singles], summed[singles], bags, counted)
        return messages
