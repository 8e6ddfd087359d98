"""Jobs that alternate between two variants, and what they give: ratios of examples per second, and the cost of
background synchronization by pace. For the latter a job covers several shares of a core (``sync.cpu_share``), and
alternates between windows with and without rounds.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypedDict

from ssmpi.bench.harness.jobs import Jobs
from ssmpi.bench.harness.reporting import say
from ssmpi.bench.harness.results import JobResult
from ssmpi.bench.harness.windows import Timing
from ssmpi.bench.throughput.contenders import SHADOWS, SSMPI, Contender

TURNS, SHORT_TURNS = 24, 4  # windows of a job that alternates between two variants
AS_SHIPPED = 0.0  # sync.cpu_share: the default share of the topology
WORTH = 0.98  # of the examples per second without rounds
LINEAR = 0.8  # below this ratio rounds run back to back, and their cost is no longer a sum of single costs
SYNC_PARTS = ("cpu/shadow", "cpu/sync_ps")


@dataclass(frozen=True)
class Harness:
    """The arguments of every section: the run file, the jobs, batch sizes, cores, the length of a window, the values of
    ``sync.cpu_share`` to compare, and rounds of jobs where separate jobs are compared.
    """

    run_file: Path
    jobs: Jobs
    batches: tuple[int, ...]
    cores: int
    timing: Timing
    short: bool
    shares: tuple[float, ...] = ()
    rounds: int = 1

    def job(self, contender: Contender, probe: str, timing: Timing) -> JobResult:
        """Run a measured job of a contender."""
        return self.jobs.run(contender.ranks, contender.overrides, timing, probe)

    def alternating_job(self, contender: Contender, probe: str, shares: tuple[float, ...] = ()) -> JobResult:
        """Run a measured job that alternates between two variants, for each of ``shares``."""
        windows = (SHORT_TURNS if self.short else TURNS) * max(1, len(shares))
        timing = replace(self.timing, windows=windows)
        return self.jobs.run(contender.ranks, contender.overrides, timing, probe, shares)


class Ratio(TypedDict):
    """The ratio of the examples per second of two variants, with its standard error."""

    ratio: float
    error: float
    rounds_per_second: float


def in_turns(harness: Harness, probe: str, asked: list[Contender]) -> dict[str, Ratio]:
    """The ratios that an alternating probe measures, by contender."""
    return {contender.name: on_over_off(harness.alternating_job(contender, probe)) for contender in asked}


def on_over_off(job: JobResult, firsts: Sequence[int] | None = None) -> Ratio:
    """From windows on, off, off, on, on, off, ...: the mean ratio of the fours of windows with its error, and rounds
    per second; over the fours that begin at ``firsts``, or all. Fours in which the other variant finished no batch are
    skipped.
    """
    windows = (job["eps"][k : k + 4] for k in (fours(job) if firsts is None else firsts))
    turns = [(on + again) / (off + still) for on, off, still, again in windows if off + still]
    error = statistics.stdev(turns) / len(turns) ** 0.5 if len(turns) > 1 else math.nan
    ratio = statistics.fmean(turns) if turns else math.nan
    return {"ratio": ratio, "error": error, "rounds_per_second": job["rounds"] / job["seconds"]}


def fours(job: JobResult, part: int = 0, parts: int = 1) -> list[int]:
    """The first windows of the fours that count, in part ``part`` of ``parts`` equal parts of the job: the fours in
    which no pass ended (a pass over real data takes hours), or all if a pass ended in every one.
    """
    every = list(range(0, len(job["eps"]) - 3, 4))
    every = every[len(every) * part // parts : len(every) * (part + 1) // parts]
    return [k for k in every if not any(job["interrupted"][k : k + 4])] or every


def on_and_off(values: list[float], firsts: list[int]) -> tuple[float, float]:
    """Sums over the windows of each variant, in the fours that begin at ``firsts``."""
    on = sum(values[k] + values[k + 3] for k in firsts)
    return on, sum(values[k + 1] + values[k + 2] for k in firsts)


class FrontierPoint(TypedDict):
    """``gap``: iterations of a trainer between two of its rounds; ``ratio`` of the examples per second with rounds to
    those without, with its standard ``error``; milliseconds of CPU time and of wall time of a trainer's round. None
    without rounds.
    """

    cpu_share: float
    ratio: float
    error: float
    gap: float | None
    cpu_ms: float | None
    wall_ms: float | None


class Frontier(TypedDict):
    """The points of one algorithm at one batch size."""

    algorithm: str
    batch: int
    points: list[FrontierPoint]


def frontiers(harness: Harness) -> dict[str, Frontier]:
    """Frontiers by contender: two trainers, each algorithm, smallest and largest batch; only one algorithm if
    ``short``.
    """
    found: dict[str, Frontier] = {}
    for contender in asked(harness):
        points, shares = [], harness.shares
        job = harness.alternating_job(contender, "shadow", shares)
        for number, share in enumerate(shares):
            points.append(point(job, contender.batch, share, fours(job, number, len(shares))))
            say(f"{contender.name}, sync.cpu_share {share:g}: EPS with rounds / without {points[-1]['ratio']:.3f}")
        found[contender.name] = {"algorithm": contender.algorithm, "batch": contender.batch, "points": points}
    return found


def asked(harness: Harness) -> list[Contender]:
    """The contenders whose rounds are measured."""
    half, sizes = max(1, harness.cores // 2), sorted({min(harness.batches), max(harness.batches)})
    if harness.short:
        return [Contender(SSMPI, sizes[0], half, "fp32", 2, "easgd")]
    return [Contender(SSMPI, size, half, "fp32", 2, algorithm) for size in sizes for algorithm in SHADOWS]


def point(job: JobResult, batch: int, cpu_share: float, firsts: list[int]) -> FrontierPoint:
    """The figures of the fours of windows that begin at ``firsts``. The CPU time of rounds is the difference between
    windows with and without rounds.
    """
    turns, growth = on_over_off(job, firsts), job["growth"]
    iterations = on_and_off(job["eps"], firsts)[0] * job["seconds"] / len(job["eps"]) / batch  # all trainers'
    rounds = sum(on_and_off(growth["rounds/all"], firsts))  # all trainers'; a round may end after a rest has begun
    timed, seconds = (sum(on_and_off(growth[name], firsts)) for name in ("rounds/timed", "rounds/timed_seconds"))
    spent = [on_and_off(growth[part], firsts) for part in SYNC_PARTS if part in growth]
    cost = sum(on - off for on, off in spent)  # below 0 if a shadow thread has ended with its pass: unknown
    return {
        "cpu_share": cpu_share,
        "ratio": turns["ratio"],
        "error": turns["error"],
        "gap": iterations / rounds if rounds else None,
        "cpu_ms": 1e3 * cost / rounds if rounds and cost >= 0 else None,
        "wall_ms": 1e3 * seconds / timed if timed else None,
    }


class RoundCost(TypedDict):
    """The cost of a round in ``iterations`` of a trainer, with its standard ``error``; the ``gap`` at which ``WORTH``
    of the examples per second remain, with ``gap_error``. Infinite if no point can be used.
    """

    iterations: float
    error: float
    gap: float
    gap_error: float


def cost_of_a_round(points: list[FrontierPoint]) -> RoundCost:
    """Fit without / with rounds - 1 = cost / gap to all points above ``LINEAR``, by least squares weighted by the
    points' errors. A single point says little: its error is as large as its effect. If the points scatter more than
    their errors allow, the cost's error is widened accordingly (Birge's ratio).
    """
    told = [p for p in points if p["gap"] and p["error"] > 0 and p["ratio"] >= LINEAR]
    weights = [(p["ratio"] ** 2 / p["error"]) ** 2 for p in told]  # of 1 / ratio
    per_gap = [1 / p["gap"] for p in told if p["gap"]]
    square = sum(weight * x * x for weight, x in zip(weights, per_gap, strict=True))
    if not square:
        return {"iterations": math.inf, "error": math.inf, "gap": math.inf, "gap_error": math.inf}
    lost = [1 / p["ratio"] - 1 for p in told]
    iterations = sum(w * x * y for w, x, y in zip(weights, per_gap, lost, strict=True)) / square
    squares = sum(w * (y - iterations * x) ** 2 for w, x, y in zip(weights, per_gap, lost, strict=True))
    birge = math.sqrt(squares / (len(told) - 1)) if len(told) > 1 else 1.0
    error, allowed = max(1.0, birge) / math.sqrt(square), 1 / WORTH - 1
    return {
        "iterations": iterations,
        "error": error,
        "gap": max(0.0, iterations / allowed),
        "gap_error": error / allowed,
    }
