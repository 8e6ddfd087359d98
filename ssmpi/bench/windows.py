"""Short time windows over threads that tick once per batch, and statistics of many windows."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypedDict

import numpy as np

Readings = dict[str, float]  # counters so far, by name: "cpu/workers" in seconds, "rss/trainer 0" in bytes, ...

clock = time.monotonic  # the same clock for all processes of a host, so ranks agree on edges


@dataclass(frozen=True)
class Timing:
    """The timing of a visit: ``warmup`` seconds that are not counted, then ``windows`` of ``seconds`` each."""

    warmup: float = 1.0
    seconds: float = 1.0
    windows: int = 3

    @property
    def total(self) -> float:
        """Seconds from first step to last edge."""
        return self.warmup + self.windows * self.seconds

    def edges(self, start: float) -> list[float]:
        """The times at which windows begin and end, on ``clock``."""
        return [start + self.warmup + k * self.seconds for k in range(self.windows + 1)]


class Ticks:
    """The times at which each thread finished its batches; ``done`` has the number of batches by then."""

    def __init__(self, threads: int) -> None:
        self.times: list[list[float]] = [[] for _ in range(threads)]
        self.done: list[list[int]] = [[] for _ in range(threads)]
        self.ends: list[float] = []  # when a thread ran out of data, at the end of a pass

    def tick(self, thread: int, batches: int = 1) -> None:
        """A thread has finished ``batches``; 0 after a rest, when the next batch begins now."""
        self.times[thread].append(clock())
        done = self.done[thread]
        done.append(done[-1] + batches if done else batches)

    def rates(self, edges: Sequence[float]) -> list[float]:
        """Batches per second in each window, all threads. A batch across an edge counts in proportion to its time."""
        done = sum(
            (np.interp(edges, times, done) for times, done in zip(self.times, self.done, strict=True) if times),
            np.zeros(len(edges)),
        )
        return [float(rate) for rate in np.diff(done) / np.diff(edges)]

    def interrupted(self, edges: Sequence[float]) -> list[bool]:
        """For each window, whether a pass ended in it."""
        return [any(a <= end < b for end in self.ends) for a, b in pairwise(edges)]


def watch(edges: Sequence[float], read: Callable[[], Readings]) -> list[Readings]:
    """Sleep from edge to edge and read the counters at each."""
    found = []
    for edge in edges:
        time.sleep(max(0.0, edge - clock()))
        found.append(read())
    return found


def spent(readings: Sequence[Readings], prefix: str) -> Readings:
    """The growth of the counters under ``prefix/`` from the first to the last reading, by the rest of their names."""
    first, last = readings[0], readings[-1]
    return {
        name.removeprefix(prefix + "/"): value - first.get(name, 0.0)
        for name, value in last.items()
        if name.startswith(prefix + "/")
    }


class Summary(TypedDict):
    """Windows with their median and best quarter."""

    median: float
    best_quarter: float
    windows: list[float]


def median(values: Sequence[float]) -> float:
    """The median; NaN of nothing."""
    return statistics.median(values) if values else math.nan


def best_quarter(values: Sequence[float]) -> float:
    """Mean of the fastest quarter of the windows (at least one): an estimate for an undisturbed machine."""
    fastest = sorted(values, reverse=True)[: max(1, round(len(values) / 4))]
    return statistics.fmean(fastest) if fastest else math.nan


def summary(values: Sequence[float]) -> Summary:
    """Windows with their median and best quarter."""
    return {"median": median(values), "best_quarter": best_quarter(values), "windows": list(values)}
