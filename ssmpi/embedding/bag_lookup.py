"""The rows of one batch with list features: as ``Lookup``, with the rows of each bag pooled to one vector."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ssmpi.embedding import bag_kernels
from ssmpi.embedding.lookup import Lookup, LookupBuffers, Room
from ssmpi.embedding.placement import Placement
from ssmpi.runtime.bags import Bags


class BagLookup(Lookup):
    """``values`` float32 (batch, features, width) has the pooled rows of each bag, zeros for an empty one. The bags
    of a batch must not change until its gradients have been pushed.
    """

    def __init__(
        self, room: Room, placement: Placement, width: int, buffers: LookupBuffers, mapped: Sequence[np.ndarray]
    ) -> None:
        super().__init__(room, placement, width, buffers, mapped)
        self._bags = self._nothing = np.zeros(1, np.int64)
        self._weights = np.empty(0, np.float32)

    def pull(self, ids: Bags) -> int:
        """As that of ``Lookup``, of bags."""
        self.fit(len(ids))
        self._bags, self._weights = ids.starts, ids.weights[ids.starts[0] : ids.starts[-1]]
        self._count = ids.size
        self.unique_count = count = bag_kernels.pull(self._args.words, ids.ids, self._bags)
        if count >= 0 and self.all_mapped:
            self.expand()
        return count

    def expand(self) -> None:
        """Fill ``values`` from the unique rows, which have arrived."""
        bag_kernels.expand_bags(self._args.words, self._bags, self._weights)

    def push(self, gradients: np.ndarray, optimizer: np.ndarray, factor: float) -> None:
        """As that of ``Lookup``."""
        bag_kernels.push(self._args.words, gradients, self._bags, self._weights, optimizer, factor)

    def summed(self, gradients: np.ndarray) -> np.ndarray:
        """As that of ``Lookup``."""
        bag_kernels.sum_gradients(self._args.words, gradients, self._bags, self._weights)
        return self._summed[: self.unique_count]
