"""One replica that two trainers of a thread hold together, beside two that hold one each and run no rounds: in short
jobs by turns, because a running job cannot change who computes what.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypedDict

from ssmpi.bench.harness.reporting import say
from ssmpi.bench.harness.results import JobResult
from ssmpi.bench.harness.windows import median
from ssmpi.bench.throughput.contenders import SSMPI, Contender
from ssmpi.bench.throughput.lock import BATCH, held
from ssmpi.bench.throughput.turns import Harness
from ssmpi.config import load
from ssmpi.model.network import Network
from ssmpi.model.places import PLANS, ROUNDED

MEMBERS = 2
BETWEEN = "auto", "messages"
TOWERS = tuple(f"tower{member}.*: {member}" for member in range(MEMBERS))


class Beside(TypedDict):
    """Examples per second of a group over those of the same trainers apart, the median of all rounds and the rounds';
    the same of examples per CPU second; examples per second and CPU seconds per second by part, of the group and apart.
    """

    ratio: float
    ratios: list[float]
    by_cpu: float
    eps: tuple[float, float]
    cores: dict[str, tuple[float, float]]


def plans(harness: Harness) -> dict[str, Beside]:
    """Every plan, in shared memory and by messages, smallest and largest batch."""
    return in_rounds(harness, [group for size in sizes(harness) for group in by_plan(size)])


def ways(harness: Harness) -> dict[str, Beside]:
    """What may make a group faster: bfloat16 on the edges, more lanes than cores, balanced stages (against half of the
    operators each), a network of towers.
    """
    asked = []
    for size in sizes(harness):
        groups = {group.plan: group for group in by_plan(size, BETWEEN[:1])}
        network = load(harness.run_file, groups["stages"].overrides).network
        asked += [rounded(groups[plan], network) for plan in ("columns", "stages")]
        asked += [replace(group, threads=2) for group in groups.values()]
        asked.append(replace(groups["stages"], plan="halves", rules=halves(network)))
        asked += [replace(groups[plan], network="dlrm") for plan in ("data", "stages")]
        asked += [replace(groups["data"], network="dlrm_towers", plan="towers", rules=TOWERS)]
    return in_rounds(harness, asked)


def lock(harness: Harness) -> dict[str, dict[str, Any]]:
    """The share of a worker's time in which it, or its trainer's helpers and mover, hold the GIL."""
    return held(harness, [*by_plan(BATCH), apart(by_plan(BATCH)[0])])


def sizes(harness: Harness) -> list[int]:
    """The smallest and the largest batch."""
    return sorted({min(harness.batches), max(harness.batches)})


def by_plan(batch: int, between: Sequence[str] = BETWEEN) -> list[Contender]:
    """A group by every plan and transport."""
    return [
        Contender(SSMPI, batch, 1, "fp32", MEMBERS, plan=plan, between=transport)
        for transport in between
        for plan in PLANS
    ]


def rounded(group: Contender, network: Network) -> Contender:
    """The group with bfloat16 on all edges of its plan."""
    rules = tuple(f"{rule} {ROUNDED}" for rule in PLANS[group.plan](network, group.trainers))
    return replace(group, plan=f"{group.plan} {ROUNDED}", rules=rules)


def halves(network: Network) -> tuple[str, ...]:
    """Half of the operators at each of two members, whatever they compute."""
    names = [operator.name for operator in network.operators]
    return tuple(f"{name}: {number * MEMBERS // len(names)}" for number, name in enumerate(names))


def apart(group: Contender) -> Contender:
    """The same trainers, of one thread, each with a replica of its own."""
    return Contender(SSMPI, group.batch, 1, group.precision, group.trainers, network=group.network)


def in_rounds(harness: Harness, asked: Sequence[Contender]) -> dict[str, Beside]:
    """Visit every group and every one apart once a round, each round beginning with another one."""
    every = list(dict.fromkeys(each for group in asked for each in (apart(group), group)))
    found: dict[Contender, list[JobResult]] = {contender: [] for contender in every}
    say("one job first that does not count: it compiles what is not compiled yet")
    harness.job(asked[0], "nothing", replace(harness.timing, windows=1))
    for number in range(harness.rounds):
        first = number * len(every) // harness.rounds
        for contender in every[first:] + every[:first]:
            found[contender].append(harness.job(contender, "nothing", harness.timing))
            say(f"round {number + 1}/{harness.rounds} {contender.name}: {median(found[contender][-1]['eps']):,.0f} EPS")
    return {group.name: beside(found[group], found[apart(group)]) for group in asked}


def beside(group: Sequence[JobResult], apart: Sequence[JobResult]) -> Beside:
    """Compare the jobs of a group with those apart, round by round."""
    pairs = [(median(one["eps"]), median(other["eps"])) for one, other in zip(group, apart, strict=True)]
    ratios = [one / other for one, other in pairs]
    parts = dict.fromkeys(part for job in (*group, *apart) for part in job["cpu"])
    by_cpu = [ratio * cores(other) / cores(one) for ratio, one, other in zip(ratios, group, apart, strict=True)]
    return {
        "ratio": statistics.median(ratios),
        "ratios": ratios,
        "by_cpu": statistics.median(by_cpu),
        "eps": (statistics.median(one for one, _ in pairs), statistics.median(other for _, other in pairs)),
        "cores": {part: (used(group, part), used(apart, part)) for part in parts},
    }


def cores(job: JobResult) -> float:
    """CPU seconds per second of a job, all its ranks."""
    return sum(job["cpu"].values()) / job["seconds"]


def used(jobs: Sequence[JobResult], part: str) -> float:
    """CPU seconds per second of a part of some jobs."""
    return statistics.fmean(job["cpu"].get(part, 0.0) / job["seconds"] for job in jobs)
