"""What synchronization in the background costs at each pace: the gap between two rounds of a trainer against examples
per second, for several shares of a core (``sync.cpu_share``). Rounds run and rest in turns within each job, which goes
through all shares.
"""

from __future__ import annotations

import math
from typing import TypedDict

from ssmpi.bench.harness.reporting import say
from ssmpi.bench.harness.results import JobResult
from ssmpi.bench.throughput.alternation import Harness, fours, on_and_off, on_over_off
from ssmpi.bench.throughput.contenders import SHADOWS, SSMPI, Contender

AS_SHIPPED = 0.0  # sync.cpu_share: the share that the topology gives
CPU_SHARES = (AS_SHIPPED, 1.0)
WORTH = 0.98  # of the examples per second without rounds
LINEAR = 0.8  # below it rounds follow each other, and what they take is no longer a sum of single costs
SYNC_PARTS = ("cpu/shadow", "cpu/sync_ps")


class FrontierPoint(TypedDict):
    """``gap`` in iterations of a trainer between two of its rounds, ``ratio`` of examples per second with rounds to
    without, with its standard ``error``; milliseconds of a trainer's round by the processors and by the clock. None
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


def measure(harness: Harness) -> dict[str, Frontier]:
    """By contender: two trainers, each algorithm, smallest and largest batch; ``short`` has one algorithm."""
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
    """Whose rounds are measured."""
    half, sizes = max(1, harness.cores // 2), sorted({min(harness.batches), max(harness.batches)})
    if harness.short:
        return [Contender(SSMPI, sizes[0], half, "fp32", 2, "easgd")]
    return [Contender(SSMPI, size, half, "fp32", 2, algorithm) for size in sizes for algorithm in SHADOWS]


def point(job: JobResult, batch: int, cpu_share: float, firsts: list[int]) -> FrontierPoint:
    """The figures of the fours of windows that begin at ``firsts``. Processor time is what the windows with rounds took
    more than those without.
    """
    turns, growth = on_over_off(job, firsts), job["growth"]
    iterations = on_and_off(job["eps"], firsts)[0] * job["seconds"] / len(job["eps"]) / batch  # all trainers'
    rounds = sum(on_and_off(growth["rounds/all"], firsts))  # all trainers'; one may end when a rest has begun
    timed, seconds = (sum(on_and_off(growth[name], firsts)) for name in ("rounds/timed", "rounds/timed_seconds"))
    spent = [on_and_off(growth[part], firsts) for part in SYNC_PARTS if part in growth]
    cost = sum(on - off for on, off in spent)  # below 0 where a shadow thread has ended with its pass: not known
    return {
        "cpu_share": cpu_share,
        "ratio": turns["ratio"],
        "error": turns["error"],
        "gap": iterations / rounds if rounds else None,
        "cpu_ms": 1e3 * cost / rounds if rounds and cost >= 0 else None,
        "wall_ms": 1e3 * seconds / timed if timed else None,
    }


class RoundCost(TypedDict):
    """What a round costs, in ``iterations`` of a trainer, with its standard ``error``; the ``gap`` that leaves
    ``WORTH`` of the examples per second, with the ``gap_error``. Infinite where no point tells.
    """

    iterations: float
    error: float
    gap: float
    gap_error: float


def cost_of_a_round(points: list[FrontierPoint]) -> RoundCost:
    """Fitted to all points at which workers keep most of the host: without / with rounds - 1 = cost / gap, by least
    squares weighted by the points' errors. One point alone decides little: its error is as large as what it shows.
    Where points scatter more than their errors allow, the cost's error is widened as much (Birge's ratio).
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
