"""What each trainer reports to the first one, about once a second."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ssmpi.runtime.quality import BINS, SUMS
from ssmpi.runtime.traffic import COUNTED


class TrainerReport(NamedTuple):
    """Counters of one trainer so far, and the quality of all that it has scored.

    ``sums`` float64 (5,) and ``histogram`` int64 (2, BINS) are those of ``core.quality``, ``traffic`` float64
    (COUNTED,) is that of ``core.traffic``. ``stop`` says whether it was asked to stop, ``finished`` whether its threads
    have finished this part of a pass.
    """

    stop: float
    finished: float
    examples: float
    iterations: float
    rounds: float
    round_seconds: float
    staleness: float
    divergence: float
    traffic: np.ndarray
    sums: np.ndarray
    histogram: np.ndarray

    def pack(self) -> np.ndarray:
        """As float64 words: counters, traffic, sums, histogram. Counts stay exact below 2^53."""
        counters = np.array(self[:COUNTERS])
        return np.concatenate([counters, self.traffic, self.sums, self.histogram.reshape(-1)]).astype(np.float64)

    @classmethod
    def unpack(cls, words: np.ndarray) -> TrainerReport:
        """The report that ``pack`` made ``words`` of."""
        counters, traffic, sums, histogram = np.split(words, EDGES)
        return cls._make([*counters.tolist(), traffic, sums, histogram.reshape(2, BINS).astype(np.int64)])


COUNTERS = len(TrainerReport._fields) - 3
EDGES = np.cumsum([COUNTERS, len(COUNTED), len(SUMS)])
