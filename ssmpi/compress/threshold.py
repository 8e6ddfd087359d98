"""Dynamic communication thresholding (Gupta et al., KDD 2021, arXiv 2010.08899, Algorithm 1)::

    W  = gradient + what was left
    at a refresh    tau = the k-th largest |W|, k = N - floor(N eta)     of each layer, exactly
    send W where |W| >= tau;  what is left = W elsewhere

The threshold hardly changes during training, so it is computed once per ``threshold_interval`` (the paper's life span);
between refreshes it is fixed, and the number of entries sent varies. Differences from the paper: a refresh sends k
entries, not k + 1; zeros are never sent, so a layer with fewer than k nonzero entries has no threshold, sends them all
and tries again at the next encode, at the cost of counting them; and because the first residuals are small, thresholds
are also computed at encodes 1, 2, 4, 8, ... of the first interval.

What is left is kept by the sender: ``sync.async_ps.PendingGradients`` for pushes, the difference of ``compress.mirror``
for rounds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ssmpi.compress import kernels
from ssmpi.compress.codec import BLOCK, TINY, CodecOptions, Nanoseconds, SparseCodec


class Threshold(SparseCodec):
    """``state`` is the number of encodes, then each layer's threshold; 0 means none yet."""

    nanoseconds = Nanoseconds(push=1.0, send=1.3, receive=0.2)  # at 99 %

    def __init__(self, options: CodecOptions, size: int, borders: Sequence[int], state: np.ndarray, seed: int) -> None:
        super().__init__(options, size, borders, state, seed)
        self._mask = np.empty(-(-min(size, BLOCK) // 8) * 8, np.uint8)

    @classmethod
    def state_size(cls, options: CodecOptions, size: int, borders: Sequence[int]) -> int:
        """One more for each layer."""
        return 2 if options.whole else 2 + len({b for b in borders if 0 < b < size})

    def prepare(self, vector: np.ndarray) -> None:
        """Compute the thresholds that are due."""
        due = self._refreshes(self.count())
        taus = self.state[1:]
        if not self.options.share:
            return
        for layer, (first, last) in enumerate(zip(self.edges, self.edges[1:], strict=False)):
            if due or not taus[layer]:
                taus[layer] = kth_largest(vector[first:last], self.options.share)

    def select(self, part: np.ndarray, start: int, places: np.ndarray, values: np.ndarray) -> int:
        """What reaches its layer's threshold."""
        found, stop = 0, start + part.size
        first = int(np.searchsorted(self.edges, start, side="right")) - 1
        for layer in range(first, len(self.edges) - 1):
            low, high = max(start, int(self.edges[layer])), min(stop, int(self.edges[layer + 1]))
            if low >= stop:
                break
            tau = max(float(self.state[1 + layer]), TINY)
            layer_part = part[low - start : high - start]
            found = kernels.take_above(layer_part, low - start, tau, places, values, found, self._mask)
        return found

    def _refreshes(self, encode: int) -> bool:
        interval = self.options.threshold_interval
        early = encode < interval and encode & (encode - 1) == 0
        return early or encode % interval == 0


def kth_largest(values: np.ndarray, share: float) -> float:
    """The magnitude that a fraction 1 - ``share`` of float32 (n,) reach; 0, without a search, if fewer entries are
    nonzero.
    """
    dropped = min(math.floor(values.size * share), values.size - 1)
    if kernels.nonzeros(values) < values.size - dropped:
        return 0.0
    return float(np.partition(np.abs(values), dropped)[dropped])
