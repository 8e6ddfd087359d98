"""The results of contenders: of a visit in one process, of a rank of a job, of a job's trainers together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NotRequired, TypedDict

from ssmpi.bench.harness.gil import Sample
from ssmpi.bench.harness.windows import Readings, spent, spent_by_window


class Visit(TypedDict):
    """Examples per second by window; CPU seconds by part and of the host; memory by process at start and end; rounds of
    a trainer; all over ``seconds``.
    """

    eps: list[float]
    seconds: float
    cpu: Readings
    host: Readings
    rss: dict[str, list[float]]
    rounds: float


class TrainerResult(Visit):
    """``interrupted``: whether a pass ended, by window; ``growth`` of each counter by window; ``seen``: the
    probe's findings at the end.
    """

    interrupted: list[bool]
    growth: dict[str, list[float]]
    stages: Readings
    seen: Sample


class ServerResult(TypedDict):
    """Seconds by stage, if stages were timed."""

    stages: Readings


class JobResult(TrainerResult):
    """All trainers together: sums of rates, seconds and growth; ``rounds`` are per trainer. ``servers`` by file
    name.
    """

    servers: NotRequired[dict[str, ServerResult]]


def of_trainer(edges: Sequence[float], readings: list[Readings], seen: Sample) -> TrainerResult:
    """The growth of a trainer's counters between the edges of its windows; the rates of examples are added later."""
    memory = {name: value for name, value in readings[0].items() if name.startswith("rss/")}
    return {
        "eps": [],
        "interrupted": [],
        "seconds": edges[-1] - edges[0],
        "cpu": spent(readings, "cpu"),
        "host": spent(readings, "host"),
        "rss": {name.removeprefix("rss/"): [value, readings[-1][name]] for name, value in memory.items()},
        "growth": spent_by_window(readings, ("cpu", "rounds")),
        "rounds": spent(readings, "rounds")["all"],
        "stages": spent(readings, "stage"),
        "seen": seen,
    }


def together(trainers: Sequence[TrainerResult]) -> JobResult:
    """Combine the results of a job's trainers: rates and seconds are summed."""
    first = trainers[0]
    growth: dict[str, list[float]] = {}
    for found in trainers:
        for name, values in found["growth"].items():
            growth[name] = [a + b for a, b in zip(growth.get(name, [0.0] * len(values)), values, strict=True)]
    return {
        "eps": [sum(rates) for rates in zip(*(found["eps"] for found in trainers), strict=True)],
        "interrupted": [any(flags) for flags in zip(*(found["interrupted"] for found in trainers), strict=True)],
        "seconds": first["seconds"],
        "cpu": added(found["cpu"] for found in trainers),
        "host": first["host"],
        "rss": {name: values for found in trainers for name, values in found["rss"].items()},
        "growth": growth,
        "rounds": sum(found["rounds"] for found in trainers) / len(trainers),
        "stages": added(found["stages"] for found in trainers),
        "seen": first["seen"],
    }


def added(counters: Iterable[Mapping[str, float]]) -> Readings:
    """Sums by name."""
    total: Readings = {}
    for found in counters:
        for name, value in found.items():
            total[name] = total.get(name, 0.0) + value
    return total
