"""Measurements besides the contenders: time by stage, and variants in turns within one job."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypedDict

from ssmpi.bench.contenders import BARE, GEMM, PYTORCH, SSMPI, Contender
from ssmpi.bench.jobs import JobResult, Jobs
from ssmpi.bench.windows import Timing, median
from ssmpi.model import processor
from ssmpi.model.networks.zoo import NETWORKS

TURNS, SHORT_TURNS = 24, 4  # windows of a job that alternates between two variants
LONG_STEPS, SLOW = 25, 25_000.0  # steps per window, at this number of examples per second and thread


@dataclass(frozen=True)
class Harness:
    """The arguments of every section: the run file, the jobs, batch sizes, cores and the length of a window."""

    run_file: Path
    jobs: Jobs
    batches: tuple[int, ...]
    cores: int
    timing: Timing
    short: bool

    @property
    def sizes(self) -> list[int]:
        """The smallest and the largest batch; only the smallest if ``short``."""
        return sorted({min(self.batches), min(self.batches) if self.short else max(self.batches)})

    def job(self, contender: Contender, probe: str, timing: Timing) -> JobResult:
        """Run a measured job of a contender."""
        return self.jobs.run(contender.ranks, contender.overrides, timing, probe)

    def of_all_threads(self) -> list[Contender]:
        """One trainer with a thread for each core."""
        return [Contender(SSMPI, size, self.cores) for size in self.sizes]


def where_time_goes(harness: Harness) -> dict[str, Any]:
    """Shares of a worker's and of the servers' time by stage, smallest and largest batch, also with a shadow thread."""
    found = {}
    for contender in to_break_down(harness):
        job = harness.job(contender, "stages", replace(harness.timing, windows=2 * harness.timing.windows))
        threads = contender.threads * contender.trainers
        rounds = job["rounds"] * contender.trainers
        found[contender.name] = {
            "eps": median(job["eps"]),
            "trainer": shares(job["stages"], threads * job["seconds"]),
            "shadow round ms": 1e3 * job["round_seconds"] / max(rounds, 1),
            "rounds": job["rounds"],
            **{name.partition("-")[0]: shares(server["stages"]) for name, server in job["servers"].items()},
        }
    return found


def to_break_down(harness: Harness) -> list[Contender]:
    """One trainer, with shared memory and with messages, and two trainers with a shadow thread; if ``short``, one
    contender with all of it.
    """
    half = max(1, harness.cores // 2)
    if harness.short:
        return [Contender(SSMPI, min(harness.batches), half, "fp32", 2, "ma", shared_memory=False)]
    found = []
    for batch in harness.sizes:
        found += [Contender(SSMPI, batch, harness.cores, shared_memory=shared) for shared in (True, False)]
        found.append(Contender(SSMPI, batch, half, "fp32", 2, "ma"))
    return found


def shares(seconds: dict[str, float], whole: float | None = None) -> dict[str, float]:
    """Shares of ``whole`` (default: the sum); time in no stage is ``rest``."""
    total = whole or sum(seconds.values()) or 1.0
    found = {name: value / total for name, value in seconds.items()}
    if whole:
        found["rest"] = max(0.0, 1.0 - sum(found.values()))
    return found


class Ratio(TypedDict):
    """The ratio of the examples per second of two variants, with its standard error."""

    ratio: float
    error: float


def in_turns(harness: Harness, probe: str, asked: list[Contender]) -> dict[str, Ratio]:
    """The ratios that a probe measures which alternates between two variants, by contender."""
    timing = replace(harness.timing, windows=SHORT_TURNS if harness.short else TURNS)
    return {contender.name: on_over_off(harness.job(contender, probe, timing)) for contender in asked}


def on_over_off(job: JobResult) -> Ratio:
    """From windows on, off, off, on, on, off, ...: the mean ratio of the fours of windows with its error. Fours in
    which the other variant finished no batch are skipped.
    """
    windows = (job["eps"][k : k + 4] for k in fours(job))
    turns = [(on + again) / (off + still) for on, off, still, again in windows if off + still]
    error = statistics.stdev(turns) / len(turns) ** 0.5 if len(turns) > 1 else math.nan
    return {"ratio": statistics.fmean(turns) if turns else math.nan, "error": error}


def fours(job: JobResult) -> list[int]:
    """The first windows of the fours that count: those in which no pass ended (a pass over real data takes hours), or
    all if a pass ended in every one.
    """
    every = list(range(0, len(job["eps"]) - 3, 4))
    return [k for k in every if not any(job["interrupted"][k : k + 4])] or every


def bare_share(harness: Harness) -> dict[str, Ratio]:
    """Examples per second of the whole loop relative to the bare dense step, all threads, within one job."""
    return in_turns(harness, BARE, harness.of_all_threads())


def half_share(harness: Harness) -> Mapping[str, object]:
    """Examples per second of the whole loop in bfloat16 relative to torch's products alone, as ``bare_share``."""
    if processor.without_bfloat16():
        return {"missing": f"bfloat16 was NOT measured: {processor.name()} has no instructions for it"}
    return in_turns(harness, GEMM, [replace(contender, precision="bf16") for contender in harness.of_all_threads()])


def networks(harness: Harness) -> dict[str, Ratio]:
    """Examples per second of the whole loop relative to PyTorch's step of the same network, one thread each."""
    asked = [Contender(SSMPI, size, network=name) for name in NETWORKS for size in harness.sizes]
    return in_turns(harness, PYTORCH, asked)


def thread_gain(harness: Harness) -> dict[str, Ratio]:
    """Examples per second of all threads relative to the first thread alone, within one job; empty on a single core.

    A thread finishes its batch before it rests; windows are long enough to make this less than a percent.
    """
    found: dict[str, Ratio] = {}
    for contender in harness.of_all_threads() if harness.cores > 1 else ():
        seconds = max(harness.timing.seconds, 0.0 if harness.short else LONG_STEPS * contender.batch / SLOW)
        found |= in_turns(replace(harness, timing=replace(harness.timing, seconds=seconds)), "threads", [contender])
    return found


SECTIONS: dict[str, Callable[[Harness], Mapping[str, object]]] = {
    "stages": where_time_goes,
    "bare": bare_share,
    "half": half_share,
    "networks": networks,
    "threads": thread_gain,
}
NOT_SHORT = ("half", "networks", "threads")  # they work as "bare" does
