"""What a worker thread trains on: some rows of a shard as arrays, without copies."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass  # not frozen: construction would take three times as long, in every step
class Batch:
    """ids int32 (batch, sparse features); dense float32 (batch, dense features); labels float32 (batch,), NaN in
    unlabelled data.
    """

    ids: np.ndarray
    dense: np.ndarray
    labels: np.ndarray

    def __len__(self) -> int:
        return len(self.ids)

    def first(self, rows: int) -> Batch:
        """The first ``rows`` rows, as views."""
        return Batch(self.ids[:rows], self.dense[:rows], self.labels[:rows])
