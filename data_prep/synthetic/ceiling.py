"""The teacher's own score on the rows it drew: an upper bound for every model.

Used by ``synthetic``, which stores it beside the text. Sums are taken row by row, so they do not depend on blocks.
"""

from __future__ import annotations

import math

import numpy as np

from ssmpi.runtime.compiled.jit import njit

BINS = 1 << 16
LOGIT_LIMIT = 16.0


class Ceiling:
    """Running AUC, log-loss and normalized entropy (NE) of true logits. AUC counts pairs within 1/2048 logit half."""

    def __init__(self) -> None:
        self._histogram = np.zeros((2, BINS), np.int64)
        self._log_loss = np.zeros(1)

    def add(self, logit: np.ndarray, label: np.ndarray) -> None:
        """Score more rows: logit float64 (rows,), label uint8 (rows,)."""
        _accumulate(logit, label, self._histogram, self._log_loss)

    def merge(self, other: Ceiling) -> None:
        """Add the rows of another."""
        self._histogram += other._histogram
        self._log_loss += other._log_loss

    def compute(self) -> dict[str, float | None]:
        """label_rate, auc, log_loss, ne, accuracy; None where undefined (no rows, or one label only)."""
        negatives, positives = (int(n) for n in self._histogram.sum(axis=1))
        rows = negatives + positives
        rate = positives / rows if rows else None
        log_loss = float(self._log_loss[0]) / rows if rows else None
        if rate is None or log_loss is None or not 0 < positives < rows:
            return {"label_rate": rate, "auc": None, "log_loss": log_loss, "ne": None, "accuracy": None}
        entropy = -rate * math.log(rate) - (1 - rate) * math.log(1 - rate)
        below = np.cumsum(self._histogram[0]) - self._histogram[0] / 2
        auc = float(self._histogram[1] @ below) / (positives * negatives)
        right = int(self._histogram[0, : BINS // 2].sum() + self._histogram[1, BINS // 2 :].sum())
        found = {"label_rate": rate, "auc": auc, "log_loss": log_loss, "ne": log_loss / entropy}
        return {**found, "accuracy": right / rows}


@njit(cache=True, nogil=True)
def _accumulate(logit: np.ndarray, label: np.ndarray, histogram: np.ndarray, log_loss: np.ndarray) -> None:
    for i in range(logit.size):
        z = logit[i]
        log_loss[0] += max(z, 0.0) - z * label[i] + np.log1p(np.exp(-abs(z)))
        bin_of = int((z + LOGIT_LIMIT) * (BINS / (2.0 * LOGIT_LIMIT)))
        histogram[label[i], min(max(bin_of, 0), BINS - 1)] += 1
