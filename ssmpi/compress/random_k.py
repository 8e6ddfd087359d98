"""Random entries: the control for choosing the largest ones."""

from __future__ import annotations

import numpy as np

from ssmpi.compress import kernels
from ssmpi.compress.codec import Nanoseconds, SparseCodec, finite


class RandomK(SparseCodec):
    """Each entry is dropped with probability ``share``, independently in every encode and reproducibly by the seed."""

    nanoseconds = Nanoseconds(push=2.6, send=3.0, receive=0.15)  # at 99 %

    def prepare(self, vector: np.ndarray) -> None:
        """Check that all entries are finite, also those that are not sent."""
        finite(vector)
        self._draw = self.count()

    def select(self, part: np.ndarray, start: int, places: np.ndarray, values: np.ndarray) -> int:
        """By a hash of seed, encode and place."""
        seed = (self._seed * 1_000_003 + self._draw) % 2**31 << 32
        return int(kernels.take_random(part, start, seed, 1.0 - self.options.share, places, values))
