"""The cost of keeping a job's state over a kill: ``recovery.mode`` auto relative to off."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import replace
from typing import TypedDict

from ssmpi.bench.harness.results import JobResult
from ssmpi.bench.harness.windows import median
from ssmpi.bench.throughput.alternation import Harness, Ratio, fours, on_and_off, on_over_off
from ssmpi.bench.throughput.contenders import SSMPI, Contender

IN_TURNS, KEPT, FORGOTTEN = "recovery", "kept", "forgotten"  # of ``harness.recovery_probes``

JOBS = 5  # of each kind, alternating: the memory of jobs varies by some percent, so the median counts


class RecoveryCost(TypedDict):
    """Ratios of examples per second, and per CPU second of the workers, by contender, alternating within one job; bytes
    of a whole job with and without.
    """

    speed: Mapping[str, Ratio]
    per_cpu_second: Mapping[str, Ratio]
    kept: float
    forgotten: float


def measure(harness: Harness) -> RecoveryCost:
    """One trainer with a thread for each core, smallest and largest batch."""
    sizes = sorted({min(harness.batches), max(harness.batches)})
    contenders = [Contender(SSMPI, size, harness.cores) for size in sizes]
    jobs = {contender.name: harness.alternating_job(contender, IN_TURNS) for contender in contenders}
    once, memory = replace(harness.timing, windows=1), dict[str, list[float]]()
    for probe in (KEPT, FORGOTTEN) * JOBS:
        memory.setdefault(probe, []).append(harness.job(contenders[-1], probe, once)["rss"]["whole job"][-1])
    return {
        "speed": {name: on_over_off(job) for name, job in jobs.items()},
        "per_cpu_second": {name: per_cpu_second(job) for name, job in jobs.items()},
        "kept": median(memory[KEPT]),
        "forgotten": median(memory[FORGOTTEN]),
    }


def per_cpu_second(job: JobResult) -> Ratio:
    """The ratio of examples per CPU second of the workers, which excludes time taken by other programs. Computed over
    all windows together, because a window's CPU time is read slightly late on busy cores; the error is a jackknife over
    fours.
    """
    firsts = fours(job)

    def ratio(left_out: int | None = None) -> float:
        counted = [first for first in firsts if first != left_out]
        done, still = on_and_off(job["eps"], counted)
        cpu, other = on_and_off(job["growth"]["cpu/workers"], counted)
        return (done / cpu) / (still / other)

    without = [ratio(first) for first in firsts] if len(firsts) > 1 else []
    error = statistics.pstdev(without) * (len(without) - 1) ** 0.5 if without else math.nan
    return {"ratio": ratio(), "error": error, "rounds_per_second": 0.0}
