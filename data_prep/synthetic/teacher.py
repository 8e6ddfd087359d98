"""The teacher: draws rows of a synthetic data set with their click probabilities, and scores itself on them: an upper
bound for every model. Used by ``synthesize``.

A row is a pure function of (seed, row number), drawn by a counter-based generator, so blocks of any size give the same
rows, without state. The click logit is the sum of linear effects of tokens and integers and of a factorization machine
of rank 4 over some of them, so a logistic regression cannot learn a good part of it. Effects fade with rarity, so one
pass over about a million rows comes close to the teacher.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from data_prep.raw.parser import DENSE_FEATURES, DENSE_NAMES, SPARSE_FEATURES, SPARSE_NAMES
from data_prep.synthetic.draws import HEAD, RANK, TeacherTables, draw, fill_gaussians, mix
from ssmpi.runtime.compiled.jit import njit

KAGGLE_CARDINALITIES = (
    *(1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194),
    *(27, 14992, 5461306, 10, 5652, 2173, 4, 7046547, 18, 15, 286181, 105, 142572),
)
KEPT_CARDINALITY = 100  # scaling down leaves a feature at least this many values, if it had them

LABEL_RATE = 0.256
MISSING_TOGETHER = (
    *((0.77, "I12"), (0.46, "I1 I10"), (0.21, "I3"), (0.22, "I4 I13"), (0.22, "I6"), (0.043, "I7 I9 I11")),
    *((0.026, "I5"), (0.77, "C22"), (0.44, "C19 C20 C25 C26"), (0.12, "C6"), (0.034, "C3 C4 C12 C16 C21 C24")),
)
# Mean and spread of the logarithm of 1 + value, roughly those of the Kaggle set.
INTEGER_LOCATION = (0.9, 1.5, 1.9, 1.6, 7.9, 3.4, 1.5, 1.9, 3.6, 0.5, 0.9, 0.3, 1.6)
INTEGER_SPREAD = (1.0, 1.6, 1.1, 0.8, 1.9, 1.6, 1.2, 1.0, 1.4, 0.4, 0.6, 0.6, 0.8)

# Occurrences in a million rows at which half of a token's effect remains: rarer tokens have smaller effects.
RELIABLE_COUNT, PAIR_RELIABLE_COUNT = 3000.0, 10_000.0
PAIRED_TOKENS = ("C2", "C5", "C6", "C8", "C9", "C14", "C17")
PAIRED_INTEGERS = ("I2", "I9")
# Spread of the three parts of the logit: tokens, integers, pairs.
TOKEN_SPREAD, INTEGER_EFFECT_SPREAD, PAIR_SPREAD = 1.0, 0.75, 0.9
CURVE_SPREAD = (1.0, 0.4)  # of an integer's linear and square effect
CALIBRATION_ROWS = 65_536

BINS = 1 << 16  # of logits, for the AUC
LOGIT_LIMIT = 16.0


@dataclass(frozen=True)
class TeacherSettings:
    """The settings of a teacher. ``drift`` (0 to 1) extends over ``rows``; ``skew`` is Zipf's exponent; ``turnover`` is
    how often each token is replaced by a new one from the first row to the last, on average.
    """

    rows: int
    seed: int = 0
    cardinalities: tuple[int, ...] = KAGGLE_CARDINALITIES
    skew: float = 1.05
    drift: float = 0.0
    turnover: float = 0.0


class DrawnRows(NamedTuple):
    """Consecutive rows.

    token int32 (rows, 26), the rank of the token within its feature by frequency, -1 missing, plus the cardinality for
    each time that it was replaced; integer int32 (rows, 13),
    MISSING_INTEGER missing; logit float64 (rows,); label uint8 (rows,).
    """

    token: np.ndarray
    integer: np.ndarray
    logit: np.ndarray
    label: np.ndarray


def scaled_cardinalities(scale: float) -> tuple[int, ...]:
    """Kaggle's cardinalities times ``scale``; a feature keeps KEPT_CARDINALITY values, or all it has if fewer."""
    return tuple(max(min(c, KEPT_CARDINALITY), round(c * scale)) for c in KAGGLE_CARDINALITIES)


class Teacher:
    """Draws rows with their true click logits. Deterministic in its settings; created within a second."""

    def __init__(self, settings: TeacherSettings) -> None:
        self.settings = settings
        self._tables = _calibrated(_raw_tables(settings))

    def block(self, first: int, rows: int) -> DrawnRows:
        """Rows ``first`` to ``first + rows - 1``: the same for any division into blocks."""
        return _drawn(self._tables, first, rows)

    def token_key(self) -> int:
        """The key that names this data set's tokens (32 bits)."""
        return int(_hashed(self.settings.seed + 0x746F6B656E73)) & 0xFFFFFFFF


def _drawn(tables: TeacherTables, first: int, rows: int) -> DrawnRows:
    block = DrawnRows(
        np.empty((rows, SPARSE_FEATURES), np.int32),
        np.empty((rows, DENSE_FEATURES), np.int32),
        np.empty(rows, np.float64),
        np.empty(rows, np.uint8),
    )
    draw(tables, first, *block)
    return block


def _popularity(cardinality: int, skew: float) -> np.ndarray:
    """Probability of the most frequent tokens, float64 (min(cardinality, HEAD),), in the distribution of the rows."""
    edges = np.arange(1, min(cardinality, HEAD) + 2, dtype=np.float64)
    if skew == 1.0:
        return np.diff(np.log(edges)) / np.log(cardinality + 1.0)
    return np.diff(edges ** (1 - skew)) / ((cardinality + 1.0) ** (1 - skew) - 1)


def _hashed(key: int) -> np.uint64:
    return np.uint64(mix(np.uint64(key)))  # a compiled function returns a plain int


def _gaussians(key: int, shape: tuple[int, ...]) -> np.ndarray:
    """Approximately normal numbers, float64, from a separate generator: NumPy's may change between versions."""
    out = np.empty(int(np.prod(shape)), np.float64)
    fill_gaussians(_hashed(key), out)
    return out.reshape(shape)


def _missing_groups() -> tuple[np.ndarray, np.ndarray]:
    """The group with which each of the 39 features is missing, int64, -1 for never; and the rate of each group."""
    names = (*DENSE_NAMES, *SPARSE_NAMES)
    group = np.full(len(names), -1, np.int64)
    for number, (_, members) in enumerate(MISSING_TOGETHER):
        group[[names.index(name) for name in members.split()]] = number
    return group, np.array([rate for rate, _ in MISSING_TOGETHER])


def _effects(key: int, share: np.ndarray, width: int, reliable: float) -> np.ndarray:
    """Random effects float64 (slots, width) of one feature's tokens: fading with rarity, with mean zero over rows."""
    count = 1e6 * share
    effects = _gaussians(key, (len(share), width)) * (count / (count + reliable))[:, None]
    return effects - share @ effects


def _raw_tables(settings: TeacherSettings) -> TeacherTables:
    """The tables without standardisation and weights, which are measured."""
    group, rates = _missing_groups()
    key = int(_hashed(settings.seed)) >> 1
    main = np.zeros((2, SPARSE_FEATURES, HEAD + 1), np.float32)
    factor = np.zeros((len(PAIRED_TOKENS), HEAD + 1, RANK), np.float32)
    factor_of = np.array([PAIRED_TOKENS.index(n) if n in PAIRED_TOKENS else -1 for n in SPARSE_NAMES], np.int64)
    for f, cardinality in enumerate(settings.cardinalities):
        missing = rates[group[DENSE_FEATURES + f]] if group[DENSE_FEATURES + f] >= 0 else 0.0
        share = np.concatenate([[missing], (1 - missing) * _popularity(cardinality, settings.skew)])
        main[:, f, : len(share)] = _effects(key + 10 * f, share, 2, RELIABLE_COUNT).T
        if factor_of[f] >= 0:
            factor[factor_of[f], : len(share)] = _effects(key + 10 * f + 1, share, RANK, PAIR_RELIABLE_COUNT)
    integer_factor = _gaussians(key + 1001, (DENSE_FEATURES, RANK))
    integer_factor[[name not in PAIRED_INTEGERS for name in DENSE_NAMES]] = 0.0
    return TeacherTables(
        row_key=_hashed(key + 1002),
        rows=settings.rows,
        drift=settings.drift,
        skew=settings.skew,
        turnover=settings.turnover,
        cardinality=np.array(settings.cardinalities, np.int64),
        group=group,
        group_rate=rates,
        location=np.array(INTEGER_LOCATION),
        spread=np.array(INTEGER_SPREAD),
        main=main,
        drifts=np.arange(SPARSE_FEATURES) % 2 == 0,
        factor_of=factor_of,
        factor=factor,
        standard=np.tile([0.0, 1.0], (DENSE_FEATURES, 1)),
        curve=_gaussians(key + 1000, (DENSE_FEATURES, 2)) * CURVE_SPREAD,
        integer_factor=integer_factor,
        weight=np.zeros(4),
    )


def _calibrated(raw: TeacherTables) -> TeacherTables:
    """Calibrate on rows of another stream: standardise the integers, scale the parts to their spread, match
    LABEL_RATE.
    """
    sample = raw._replace(row_key=_hashed(int(raw.row_key) >> 1), rows=CALIBRATION_ROWS, turnover=0.0)
    logs = np.log1p(np.maximum(_drawn(sample, 0, CALIBRATION_ROWS).integer, 0))
    # Rounded, so that the last bit of a platform's logarithm cannot change the rows.
    standard = np.stack([logs.mean(axis=0), 1 / logs.std(axis=0)], axis=1).round(6)
    sample = sample._replace(standard=standard)
    weight = np.zeros(4)
    for part, spread in enumerate((TOKEN_SPREAD, INTEGER_EFFECT_SPREAD, PAIR_SPREAD)):
        value = _drawn(sample._replace(weight=np.eye(4)[part], drift=0.0), 0, CALIBRATION_ROWS).logit
        weight[part] = round(spread / value.std(), 6)
    logit = _drawn(sample._replace(weight=weight), 0, CALIBRATION_ROWS).logit
    low, high = -10.0, 10.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if (1 / (1 + np.exp(-logit - middle))).mean() < LABEL_RATE else (low, middle)
    weight[3] = round(low, 6)
    return raw._replace(standard=standard, weight=weight)


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
