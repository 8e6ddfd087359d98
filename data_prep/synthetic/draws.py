"""The compiled loops behind ``teacher``: random rows from a counter, and the click logit of each.

Every number is a hash of (key, row, number of the draw), so that nothing depends on which rows were drawn before.
Which draw of a row is what is part of the data set: another order gives other files for the same seed.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from data_prep.raw.parser import DENSE_FEATURES
from ssmpi.runtime.compiled.jit import njit

MISSING_INTEGER = -(2**31)
NEGATIVE_RATE = 0.105  # of I2, the only integer of the Kaggle set that goes below zero
HEAD = 16_384  # tokens beyond the most frequent ones carry no signal
RANK = 4
DRIFT_OF_BASE = 0.5  # logit, from the first row to the last

# Which draw of a row is what; the missing groups come first.
_LABEL_DRAW, _NEGATIVE_DRAW, _INTEGER_DRAW, _TOKEN_DRAW = 30, 31, 32, 64


class TeacherTables(NamedTuple):
    """What the compiled loop reads. Slot 0 of a token table is "missing", slot 1 + i the i-th most frequent token."""

    row_key: np.uint64
    rows: int
    drift: float
    skew: float
    turnover: float
    cardinality: np.ndarray  # int64 (26,)
    group: np.ndarray  # int64 (39,): which missing group, -1 never
    group_rate: np.ndarray  # float64 (groups,)
    location: np.ndarray  # float64 (13,)
    spread: np.ndarray  # float64 (13,)
    main: np.ndarray  # float32 (2, 26, HEAD + 1): effects at the beginning, and what they turn into
    drifts: np.ndarray  # bool (26,)
    factor_of: np.ndarray  # int64 (26,): which factor table, -1 none
    factor: np.ndarray  # float32 (paired, HEAD + 1, RANK)
    standard: np.ndarray  # float64 (13, 2): mean and 1/deviation of log1p
    curve: np.ndarray  # float64 (13, 2): linear and square effect
    integer_factor: np.ndarray  # float64 (13, RANK), zero where not paired
    weight: np.ndarray  # float64 (4,): tokens, integers, pairs, intercept


@njit(cache=True, nogil=True)
def mix(x: np.uint64) -> np.uint64:
    """The finalizer of splitmix64: a bijection of 64 bits."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@njit(cache=True, nogil=True)
def _bits(key: np.uint64, counter: int) -> np.uint64:
    """Draw number ``counter`` of a stream."""
    return mix(key + np.uint64(counter + 1) * np.uint64(0x9E3779B97F4A7C15))


@njit(cache=True, nogil=True)
def _uniform(bits: np.uint64) -> float:
    return np.float64(bits >> np.uint64(11)) * 2.0**-53


@njit(cache=True, nogil=True)
def _gaussian(bits: np.uint64) -> float:
    """Sum of four uniform numbers of 16 bits: mean 0, deviation 1, never beyond 3.5."""
    low = np.uint64(0xFFFF)
    total = (bits & low) + (bits >> np.uint64(16) & low) + (bits >> np.uint64(32) & low) + (bits >> np.uint64(48))
    return (np.float64(total) / 65536.0 - 2.0) * np.sqrt(3.0)


@njit(cache=True, nogil=True)
def fill_gaussians(key: np.uint64, out: np.ndarray) -> None:
    """Fill ``out`` with the stream of ``key``."""
    for i in range(out.size):
        out[i] = _gaussian(_bits(key, i))


@njit(cache=True, nogil=True)
def _draw_integers(tables: TeacherTables, state: np.uint64, missing: np.ndarray, out: np.ndarray) -> None:
    """Lognormal counts, rounded down; I2 goes below zero."""
    for j in range(out.size):
        if tables.group[j] >= 0 and missing[tables.group[j]]:
            out[j] = MISSING_INTEGER
            continue
        log = tables.location[j] + tables.spread[j] * _gaussian(_bits(state, _INTEGER_DRAW + j))
        out[j] = np.int32(np.expm1(max(log, 0.0)))
    negative = _uniform(_bits(state, _NEGATIVE_DRAW))
    if negative < NEGATIVE_RATE:
        out[1] = -2 if negative < 0.02 * NEGATIVE_RATE else -1


@njit(cache=True, nogil=True)
def _generation(tables: TeacherTables, feature: int, rank: int, passed: float) -> int:
    """How often the token of this rank has been replaced: each at its own times, as often as any other."""
    if tables.turnover == 0.0:
        return 0
    return int(tables.turnover * passed + _uniform(_bits(mix(tables.row_key + np.uint64(feature)), rank)))


@njit(cache=True, nogil=True)
def _sign(tables: TeacherTables, feature: int, token: int) -> float:
    """1 or -1, of the effects of a token: those of one that has replaced another may be the opposite."""
    if token < tables.cardinality[feature]:
        return 1.0
    return 1.0 if _bits(mix(~(tables.row_key + np.uint64(feature))), token) & np.uint64(1) else -1.0


@njit(cache=True, nogil=True)
def _draw_tokens(tables: TeacherTables, state: np.uint64, missing: np.ndarray, passed: float, out: np.ndarray) -> None:
    """Ranks from a power law, by inverting its continuous distribution function: no table, any cardinality. A token
    that has replaced another is a rank plus a multiple of the cardinality.
    """
    power = 1.0 - tables.skew
    for f in range(out.size):
        group = tables.group[DENSE_FEATURES + f]
        if group >= 0 and missing[group]:
            out[f] = -1
            continue
        u = _uniform(_bits(state, _TOKEN_DRAW + f))
        end = np.float64(tables.cardinality[f] + 1)
        x = end**u if power == 0.0 else (1.0 + u * (end**power - 1.0)) ** (1.0 / power)
        rank = min(np.int64(x), tables.cardinality[f]) - 1
        out[f] = rank + _generation(tables, f, rank, passed) * tables.cardinality[f]


@njit(cache=True, nogil=True)
def _logit(tables: TeacherTables, angle: float, token: np.ndarray, integer: np.ndarray) -> float:
    """The teacher: linear effects, and a factorization machine by (sum of vectors)^2 - sum of squares."""
    stay, turn = np.cos(angle), np.sin(angle)
    tokens = integers = squares = 0.0
    total = np.zeros(RANK)
    for f in range(token.size):
        rank = token[f] % tables.cardinality[f] if token[f] >= 0 else token[f]
        slot, sign = min(rank + 1, HEAD), _sign(tables, f, token[f])
        if turn != 0.0 and tables.drifts[f]:
            tokens += sign * (stay * tables.main[0, f, slot] + turn * tables.main[1, f, slot])
        else:
            tokens += sign * tables.main[0, f, slot]
        if tables.factor_of[f] >= 0:
            for k in range(RANK):
                v = sign * np.float64(tables.factor[tables.factor_of[f], slot, k])
                total[k] += v
                squares += v * v
    for j in range(integer.size):
        z = (np.log1p(np.float64(max(integer[j], 0))) - tables.standard[j, 0]) * tables.standard[j, 1]
        z = min(max(z, -2.5), 2.5)
        integers += tables.curve[j, 0] * z + tables.curve[j, 1] * (z * z - 1.0)
        for k in range(RANK):
            v = tables.integer_factor[j, k] * z
            total[k] += v
            squares += v * v
    pairs = (np.sum(total * total) - squares) / 2.0
    return tables.weight[0] * tokens + tables.weight[1] * integers + tables.weight[2] * pairs


@njit(cache=True, nogil=True)
def draw(
    tables: TeacherTables, first: int, token: np.ndarray, integer: np.ndarray, logit: np.ndarray, label: np.ndarray
) -> None:
    """Draw rows ``first`` on into arrays of the shapes of ``teacher.DrawnRows``."""
    missing = np.zeros(tables.group_rate.size, np.bool_)
    for r in range(logit.size):
        state = _bits(tables.row_key, first + r)
        for g in range(missing.size):
            missing[g] = _uniform(_bits(state, g)) < tables.group_rate[g]
        _draw_integers(tables, state, missing, integer[r])
        passed = min((first + r) / tables.rows, 1.0)
        _draw_tokens(tables, state, missing, passed, token[r])
        logit[r] = _logit(tables, tables.drift * passed * np.pi / 2.0, token[r], integer[r])
        logit[r] += tables.weight[3] + tables.drift * DRIFT_OF_BASE * (passed - 0.5)
        label[r] = _uniform(_bits(state, _LABEL_DRAW)) < 1.0 / (1.0 + np.exp(-logit[r]))
