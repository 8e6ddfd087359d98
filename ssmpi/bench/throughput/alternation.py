"""What every section is given, and the arithmetic of jobs that work in two ways in turns."""

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

TURNS, SHORT_TURNS = 24, 4  # windows of a job that works in two ways, in turns


@dataclass(frozen=True)
class Harness:
    """What every section needs: the run file, the jobs, batch sizes, cores, how long a window is, and the values of
    ``sync.cpu_share`` to be compared.
    """

    run_file: Path
    jobs: Jobs
    batches: tuple[int, ...]
    cores: int
    timing: Timing
    short: bool
    shares: tuple[float, ...] = ()

    def job(self, contender: Contender, probe: str, timing: Timing) -> JobResult:
        """A measured job of a contender."""
        return self.jobs.run(contender.ranks, contender.overrides, timing, probe)

    def alternating_job(self, contender: Contender, probe: str, shares: tuple[float, ...] = ()) -> JobResult:
        """A measured job that works in two ways, in turns; for each of ``shares``."""
        windows = (SHORT_TURNS if self.short else TURNS) * max(1, len(shares))
        timing = replace(self.timing, windows=windows)
        return self.jobs.run(contender.ranks, contender.overrides, timing, probe, shares)


class Ratio(TypedDict):
    """Examples per second of one way to work over those of the other, with its standard error."""

    ratio: float
    error: float
    rounds_per_second: float


def in_turns(harness: Harness, probe: str, asked: list[Contender]) -> dict[str, Ratio]:
    """What an alternating probe finds, by contender."""
    return {contender.name: on_over_off(harness.alternating_job(contender, probe)) for contender in asked}


def on_over_off(job: JobResult, firsts: Sequence[int] | None = None) -> Ratio:
    """From windows on, off, off, on, on, off, ...: the mean of each four's ratio with its error, rounds a second; of
    the fours that begin at ``firsts``, or of all. One in which the other way finished no batch says nothing.
    """
    windows = (job["eps"][k : k + 4] for k in (fours(job) if firsts is None else firsts))
    turns = [(on + again) / (off + still) for on, off, still, again in windows if off + still]
    error = statistics.stdev(turns) / len(turns) ** 0.5 if len(turns) > 1 else math.nan
    ratio = statistics.fmean(turns) if turns else math.nan
    return {"ratio": ratio, "error": error, "rounds_per_second": job["rounds"] / job["seconds"]}


def fours(job: JobResult, part: int = 0, parts: int = 1) -> list[int]:
    """The first windows of the fours that count, in one of so many equal parts of the job: those in which no pass
    ended, unless one ended in all of them, as a pass over real data takes hours.
    """
    every = list(range(0, len(job["eps"]) - 3, 4))
    every = every[len(every) * part // parts : len(every) * (part + 1) // parts]
    return [k for k in every if not any(job["interrupted"][k : k + 4])] or every


def on_and_off(values: list[float], firsts: list[int]) -> tuple[float, float]:
    """Sums over the windows of one way and of the other, in the fours that begin at ``firsts``."""
    on = sum(values[k] + values[k + 3] for k in firsts)
    return on, sum(values[k + 1] + values[k + 2] for k in firsts)
