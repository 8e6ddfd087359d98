"""What it costs that the state of a job outlives a kill, ``recovery.mode`` auto over off."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TypedDict

from ssmpi.bench.harness.results import JobResult
from ssmpi.bench.throughput.alternation import Harness, Ratio, on_over_off
from ssmpi.bench.throughput.contenders import SSMPI, Contender

IN_TURNS, KEPT, FORGOTTEN = "recovery", "kept", "forgotten"  # of ``harness.recovery_probes``


class RecoveryCost(TypedDict):
    """Examples per second, and per CPU second of the workers, by contender, in turns within one job; bytes of a whole
    job with and without.
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
    once = replace(harness.timing, windows=1)
    kept, forgotten = (harness.job(contenders[-1], probe, once)["rss"]["whole job"] for probe in (KEPT, FORGOTTEN))
    return {
        "speed": {name: on_over_off(job) for name, job in jobs.items()},
        "per_cpu_second": {name: on_over_off(per_cpu_second(job)) for name, job in jobs.items()},
        "kept": kept[-1],
        "forgotten": forgotten[-1],
    }


def per_cpu_second(job: JobResult) -> JobResult:
    """The same job with rates by the time that its workers had a core: other programs on the host take some of it."""
    seconds = job["seconds"] / len(job["eps"])
    rates = [eps * seconds / cpu for eps, cpu in zip(job["eps"], job["growth"]["cpu/workers"], strict=True)]
    return {**job, "eps": rates}
