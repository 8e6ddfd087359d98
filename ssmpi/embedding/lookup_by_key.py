"""A lookup of distinct ids, of which some are not known yet: PSs on other hosts are asked for keys and rows at once.

A PS answers with the rows that its keys have, or get, and their values, so that there is one round trip. Until then an
awaited key stands for a row that is behind the known ones of its PS. Keys without one share a row, which may lie on
another PS: it is asked for beside them, for each feature, and left out if nobody needs it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ssmpi.embedding import lookup_kernels, wire
from ssmpi.embedding.key_lookup import NOTHING_AWAITED, DistinctIds
from ssmpi.embedding.lookup import Lookup, LookupBuffers, Room
from ssmpi.embedding.placement import Placement
from ssmpi.runtime.compiled.aligned import aligned
from ssmpi.runtime.protocols import Request


class LookupByKey(Lookup):
    """``rows`` and ``starts`` are those of unique rows once they have arrived; before that as ``route_distinct`` has
    them.
    """

    def __init__(
        self, room: Room, placement: Placement, width: int, buffers: LookupBuffers, mapped: Sequence[np.ndarray]
    ) -> None:
        super().__init__(room, placement, width, buffers, mapped)
        far = 0 if self.all_mapped else room.ids
        self._substitutes, self._arrived = np.empty(far, np.int32), aligned((far + placement.servers + far * width,))
        self._words, self._sent = self._arrived.view(np.int32), np.zeros((2, placement.servers), np.int64)
        self._short: list[tuple[int, int]] = []  # of each reply with rows of keys: where it begins, and its values
        self._awaited, self._end = NOTHING_AWAITED, 0

    def pull(self, ids: DistinctIds) -> int:
        """As that of ``Lookup``, of distinct ids."""
        self.fit(len(ids))
        self._awaited, self._end = ids.awaited, 0
        self._short = []
        self._sent[:] = 0
        awaited = self._awaited.places, self._awaited.starts, self._substitutes
        self.unique_count = count = lookup_kernels.pull_distinct(
            self._args.words, ids.words.words, len(ids), awaited, self.all_mapped
        )
        return count

    def request(self, server: int) -> Request:
        """The rows and keys to ask a PS for."""
        if not (self._awaited.asked and len(self._awaited.asked[server])):
            return super().request(server)
        asked, (start, stop) = self._awaited.asked[server], self.starts[server : server + 2].tolist()
        payload = wire.pull_keys(self.rows[start : stop - len(asked)], asked)
        begin, width = self._end, self.unique.shape[1]
        self._end += 1 + len(asked) + (stop - start) * width
        self._short.append((begin, 1 + len(asked)))
        self._sent[:, server] = len(asked), begin
        return Request(wire.PULL_KEYS, payload, self._arrived[begin : self._end], whole=False)

    def short_replies(self) -> list[int]:
        """Those of PSs that were asked for keys."""
        row, words = self.unique.strides[0], self._words
        return [4 * edge + row * int(words[begin]) for begin, edge in self._short]

    def expand(self) -> None:
        """As that of ``Lookup``, once, and know which rows there are."""
        if len(self._awaited.places):
            self.unique_count = lookup_kernels.settle(
                self._args.words, self._count, self._substitutes, self._arrived, self._sent
            )
            self._awaited = NOTHING_AWAITED
        else:
            super().expand()
