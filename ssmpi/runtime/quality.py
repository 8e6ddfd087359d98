"""Quality of scores as mergeable sums: a metric is a value that adds up over batches, threads and trainers.

AUC is streamed: scores fall into ``BINS`` equal bins of the logit, and pairs that share a bin count one half. The
error of that is at most half the share of (clicked, not clicked) pairs within one bin, which is reported beside it.

GAUC is the AUC within groups of rows such as a user's (Zhou et al., KDD 2018, arXiv 1706.06978)::

GAUC = sum of rows_u AUC_u / sum of rows_u    over groups u that have clicked and not clicked rows

It asks whether a group's own rows are in the right order, and is exact: pairs of equal scores count one half.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from ssmpi.runtime.compiled.jit import njit

BINS = 16384
LOGIT_LIMIT = 16.0
SCORE = np.dtype([("group", "<i8"), ("logit", "<f4"), ("label", "u1")])  # of a row
SUMS = ("examples", "positives", "log_loss", "score", "correct")


@njit(cache=True, nogil=True)
def accumulate(logits: np.ndarray, labels: np.ndarray, histogram: np.ndarray, sums: np.ndarray) -> float:
    """Add a batch to ``histogram`` int64 (2, BINS) and ``sums`` float64 (5,); returns the batch's summed log-loss.

    logits float32 (batch,); labels float32 (batch,) of 0 and 1. A logit that is not finite makes the sum NaN.
    """
    bins = histogram.shape[1]
    scale = bins / (2.0 * LOGIT_LIMIT)
    total = 0.0
    score = 0.0
    positives = 0.0
    correct = 0.0
    for i in range(logits.shape[0]):
        z = np.float64(logits[i])
        y = np.float64(labels[i])
        if not np.isfinite(z):
            return np.nan
        e = math.exp(-abs(z))
        total += max(z, 0.0) - z * y + math.log1p(e)
        score += 1.0 / (1.0 + e) if z >= 0 else e / (1.0 + e)
        positives += y
        correct += 1.0 if (z >= 0) == (y > 0.5) else 0.0
        k = int((min(max(z, -LOGIT_LIMIT), LOGIT_LIMIT) + LOGIT_LIMIT) * scale)
        histogram[1 if y > 0.5 else 0, min(k, bins - 1)] += 1
    sums[0] += logits.shape[0]
    sums[1] += positives
    sums[2] += total
    sums[3] += score
    sums[4] += correct
    return total


def counters(array: Callable[..., np.ndarray], threads: int) -> tuple[np.ndarray, np.ndarray]:
    """What each thread of a trainer has scored: sums float64 (threads, 5) and histograms int64 (threads, 2, BINS). A
    rank's memory has the function that makes an ``array`` by name, shape and type.
    """
    sums = array("sums", (threads, len(SUMS)), np.float64)
    return sums, array("histograms", (threads, 2, BINS), np.int64)


@dataclass
class Quality:
    """Sums over scored examples: ``histogram`` int64 (2, BINS) of not clicked and clicked, ``sums`` float64 (5,)."""

    histogram: np.ndarray = field(default_factory=lambda: np.zeros((2, BINS), np.int64))
    sums: np.ndarray = field(default_factory=lambda: np.zeros(len(SUMS), np.float64))

    @classmethod
    def of(cls, sums: np.ndarray, histograms: np.ndarray) -> Quality:
        """What all threads have scored, from their ``counters``."""
        return cls(histograms.sum(axis=0), sums.sum(axis=0))

    def add(self, logits: np.ndarray, labels: np.ndarray) -> float:
        """Add a batch; returns its summed log-loss, NaN if a logit is not finite."""
        return float(accumulate(logits, labels, self.histogram, self.sums))

    def merge(self, other: Quality) -> None:
        """Add the sums of another thread or trainer."""
        self.histogram += other.histogram
        self.sums += other.sums

    def compute(self) -> dict[str, float]:
        """The metrics by name; NaN where there is nothing to compute them from.

        ``ne`` is the log-loss over that of always predicting the mean label (He et al., ADKDD 2014);
        ``calibration`` is expected over counted clicks; ``auc_error`` bounds the error of the binned ``auc``.
        """
        examples, positives, log_loss, score, correct = (float(s) for s in self.sums)
        if not examples:
            return dict.fromkeys(("log_loss", "ne", "auc", "auc_error", "accuracy", "calibration"), math.nan)
        auc, error = self._auc()
        return {
            "log_loss": log_loss / examples,
            "ne": log_loss / examples / entropy(positives / examples) if 0 < positives < examples else math.nan,
            "auc": auc,
            "auc_error": error,
            "accuracy": correct / examples,
            "calibration": score / positives if positives else math.nan,
        }

    def _auc(self) -> tuple[float, float]:
        negative, positive = self.histogram.astype(np.float64)
        pairs = negative.sum() * positive.sum()
        if not pairs:
            return math.nan, math.nan
        below = np.cumsum(negative) - negative
        shared = float(negative @ positive) / pairs
        return float(positive @ below) / pairs + shared / 2, shared / 2


def improves(metric: str, value: float, on: float | None, by: float = 0.0) -> bool:
    """Whether a ``value`` of the metric is better than an earlier one, if there is one, by more than ``by``; NaN never
    is. More is better, but less of NE and of log-loss.
    """
    if math.isnan(value) or on is None or math.isnan(on):
        return not math.isnan(value)
    return value < on - by if metric in ("ne", "log_loss") else value > on + by


def entropy(rate: float) -> float:
    """Log-loss (nats) of always predicting ``rate`` where ``rate`` is true."""
    return -rate * math.log(rate) - (1 - rate) * math.log(1 - rate)


def group_auc_sums(scores: np.ndarray) -> np.ndarray:
    """float64 (2,) of scores SCORE (rows,): both sums. Those of disjoint sets of groups add up. NaN if a logit is
    not finite.
    """
    if not np.isfinite(scores["logit"]).all():
        return np.full(2, np.nan)
    order = np.lexsort((scores["logit"], scores["group"]))
    return _sums(*(np.ascontiguousarray(scores[name][order]) for name in ("group", "logit", "label")))


@njit(cache=True, nogil=True)
def _sums(groups: np.ndarray, logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Of rows in the order of their groups, and within a group in that of their logits."""
    sums = np.zeros(2)
    start, rows = 0, len(groups)
    while start < rows:
        end, negative, positive, twice = start, 0, 0, 0  # ``twice`` the pairs in the right order
        while end < rows and groups[end] == groups[start]:
            logit, negative_here, positive_here = logits[end], 0, 0
            while end < rows and groups[end] == groups[start] and logits[end] == logit:
                positive_here += labels[end] != 0
                negative_here += labels[end] == 0
                end += 1
            twice += positive_here * (2 * negative + negative_here)
            negative += negative_here
            positive += positive_here
        if negative and positive:
            sums[0] += (end - start) * (0.5 * twice / (float(negative) * positive))
            sums[1] += end - start
        start = end
    return sums
