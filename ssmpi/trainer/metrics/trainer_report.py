"""What each trainer reports to the first one, about once a second; and what follows from all reports: the traffic, by
window and over all jobs of a run, and which trainers are slow.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from ssmpi.runtime.quality import BINS, SUMS
from ssmpi.runtime.traffic import BYTES, COUNTED, ENTRIES, GROUP_ENTRIES, LINKS, MESSAGES, ROWS, SENT, Link

SLOW = 0.5  # of the median of the other trainers
MEASURED_SECONDS = 60.0  # of training


class TrainerReport(NamedTuple):
    """Counters of one trainer so far, and the quality of all that it has scored.

    ``sums`` float64 (5,) and ``histogram`` int64 (2, BINS) are those of ``runtime.quality``, ``traffic`` float64
    (COUNTED,) is that of ``runtime.traffic``. ``stop`` says whether it was asked to stop, ``finished`` whether its
    threads have finished this part of a pass.
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


class TrafficLog:
    """Sums over ``trainers``; ``earlier`` are the totals of the jobs that this one continues, by name."""

    def __init__(self, trainers: int, earlier: Mapping[str, float]) -> None:
        self._earlier = np.array([earlier.get(name, 0.0) for name in COUNTED])
        self._reported, self._window = np.zeros((trainers, len(COUNTED))), self._earlier

    def gathered(self, trainer: int, counts: np.ndarray) -> None:
        """What one trainer has counted so far, float64 (COUNTED,)."""
        self._reported[trainer] = counts

    def totals(self) -> dict[str, float]:
        """By name, earlier jobs included."""
        return dict(zip(COUNTED, self._totals().tolist(), strict=True))

    def window(self) -> dict[str, float]:
        """Bytes, rows, entries of groups and, where a codec encodes, density since the last call."""
        before, self._window = self._window, self._totals()
        growth = dict(zip(COUNTED, (self._window - before).tolist(), strict=True))
        return {name: growth[name] for name in (*BYTES, ROWS, GROUP_ENTRIES)} | density(growth)

    def _totals(self) -> np.ndarray:
        total: np.ndarray = self._earlier + self._reported.sum(axis=0)
        return total


def density(counts: Mapping[str, float]) -> dict[str, float]:
    """The share of its entries that a codec has sent; empty if there is no codec."""
    return {"density": counts[SENT] / counts[ENTRIES]} if counts[ENTRIES] else {}


def nested(totals: Mapping[str, float]) -> dict[str, Any]:
    """As ``result.json`` has it: ``bytes`` and ``messages`` by class of link, rows in place among the former; the
    ``entries`` of groups; and the ``density`` of what a codec has sent.
    """
    by_link = [{link: totals[name] for link, name in zip(LINKS, names, strict=True)} for names in (BYTES, MESSAGES)]
    return {
        "bytes": {**by_link[0], ROWS: totals[ROWS]}, "messages": by_link[1],
        "entries": {Link.GROUP.name.lower(): totals[GROUP_ENTRIES]}, **density(totals),
    }  # fmt: skip


def slow_trainers(examples: Mapping[int, float]) -> dict[int, float]:
    """The trainers that have done less than ``SLOW`` times the median of the others, with this median, given the
    examples of each in the same time.
    """
    if len(examples) < 2:
        return {}
    others = {trainer: median(n for other, n in examples.items() if other != trainer) for trainer in examples}
    return {trainer: most for trainer, most in others.items() if examples[trainer] < SLOW * most}


class PaceWatch:
    """Applies the rule to every ``MEASURED_SECONDS`` in which all of some ``trainers`` train: not while training
    pauses, nor at the end of a part, when a trainer may have nothing left to do. Times are seconds of any clock.
    """

    def __init__(self, trainers: Iterable[int]) -> None:
        self._latest = dict.fromkeys(trainers, 0.0)
        self._since: float | None = None
        self._at_start = dict(self._latest)
        self._done, self._seconds = dict.fromkeys(self._latest, 0.0), 0.0
        self._slow: set[int] = set()

    def begin(self, now: float) -> None:
        """All trainers train from now on."""
        self._since, self._at_start = now, dict(self._latest)

    def rest(self, now: float) -> None:
        """Some trainer trains no more."""
        if self._since is None:
            return
        self._seconds += now - self._since
        self._since = None
        for trainer, before in self._at_start.items():
            self._done[trainer] += self._latest[trainer] - before

    def report(self, trainer: int, examples: float, now: float, *, finished: bool) -> dict[int, float]:
        """Take a trainer's examples so far, and whether it has ``finished`` its part. Returns the examples of all in
        the time measured if a trainer has become slow, else nothing.
        """
        if trainer in self._latest:
            self._latest[trainer] = examples
        if finished:
            self.rest(now)
        if self._since is None or self._seconds + now - self._since < MEASURED_SECONDS:
            return {}
        self.rest(now)
        done, slow = self._done, set(slow_trainers(self._done))
        known, self._slow = self._slow, slow
        self._done, self._seconds = dict.fromkeys(done, 0.0), 0.0
        self.begin(now)
        return done if slow - known else {}
