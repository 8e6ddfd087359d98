"""The arguments of every section, and the arithmetic of jobs that alternate between two variants."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypedDict

from ssmpi.bench.harness.jobs import Jobs
from ssmpi.bench.harness.results import JobResult
from ssmpi.bench.harness.windows import Timing
from ssmpi.bench.throughput.contenders import Contender

TURNS, SHORT_TURNS = 24, 4  # windows of a job that alternates between two variants


@dataclass(frozen=True)
class Harness:
    """The arguments of every section: the run file, the jobs, batch sizes, cores, the length of a window, and the
    values of ``sync.cpu_share`` to compare.
    """

    run_file: Path
    jobs: Jobs
    batches: tuple[int, ...]
    cores: int
    timing: Timing
    short: bool
    shares: tuple[float, ...] = ()

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
