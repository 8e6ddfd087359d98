"""A lookup of distinct ids, of which some are not known yet: PSs on other hosts are asked for keys and rows at once.

A PS answers with the rows that its keys have, or get, and their values, so that there is one round trip. Until then an
awaited key stands for a row that is behind the known ones of its PS. Keys without one share a row, which may lie on
another PS: it is asked for beside them, for each feature, and left out if nobody needs it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ssmpi.core.protocols import Request
from ssmpi.embedding import lookup_kernels, wire
from ssmpi.embedding.key_kernels import NOT_FOUND
from ssmpi.embedding.key_lookup import NOTHING_AWAITED, DistinctIds
from ssmpi.embedding.lookup import Lookup, LookupBuffers, Room
from ssmpi.embedding.placement import Placement


class LookupByKey(Lookup):
    """``rows`` and ``starts`` are those of unique rows once they have arrived; before that as ``route_distinct`` has
    them.
    """

    def __init__(
        self, room: Room, placement: Placement, width: int, buffers: LookupBuffers, mapped: Sequence[np.ndarray]
    ) -> None:
        super().__init__(room, placement, width, buffers, mapped)
        self._substitutes = np.empty(0 if self.all_mapped else room.ids, np.int32)
        self._awaited = NOTHING_AWAITED

    def pull(self, ids: DistinctIds) -> int:
        """As that of ``Lookup``, of distinct ids."""
        self.fit(len(ids))
        self._awaited = ids.awaited
        awaited = self._awaited.places, self._substitutes
        self.unique_count = count = lookup_kernels.pull_distinct(
            self._args.words, ids.words.words, len(ids), awaited, self.all_mapped
        )
        return count

    def _parts(self, server: int) -> tuple[slice, slice]:
        """The places of a PS's rows that are known, and of those that are awaited."""
        start, stop = self.starts[server : server + 2].tolist()
        edge = stop - len(self._awaited.asked[server])
        return slice(start, edge), slice(edge, stop)

    def request(self, server: int) -> Request:
        """The rows and keys to ask a PS for; the numbers of keys' rows come first, then all values."""
        if not (self._awaited.asked and len(self._awaited.asked[server])):
            return super().request(server)
        known, awaited = self._parts(server)
        payload = wire.pull_keys(self.rows[known], self._awaited.asked[server])
        return Request(wire.PULL_KEYS, payload, self.rows[awaited], self.unique[known.start : awaited.stop])

    def second_replies(self) -> list[int]:
        """Of each PS that was asked for keys: known rows, and those of keys that have one."""
        sizes, row_bytes = list[int](), self.unique.strides[0]
        for server, asked in enumerate(self._awaited.asked):
            if len(asked):
                known, awaited = self._parts(server)
                found = np.count_nonzero(self.rows[awaited] != NOT_FOUND)
                sizes.append((known.stop - known.start + int(found)) * row_bytes)
        return sizes

    def expand(self) -> None:
        """As that of ``Lookup``, once, and know which rows there are."""
        if len(self._awaited.places):
            self.unique_count = lookup_kernels.settle(self._args.words, self._count, self._substitutes)
            self._awaited = NOTHING_AWAITED
        else:
            super().expand()
