"""``ssmpi bench throughput``: measures all contenders on the same machine, model and rows, interleaved, in many short
windows.

A round visits every contender once, and each round starts with a different one, so a slow minute of the machine affects
all alike. A visit is a separate process or MPI job: start, warm-up, a few windows. Sections follow: time by stage,
variants in turns.
"""

from __future__ import annotations

import dataclasses
import difflib
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ssmpi.bench import data, render, reporting
from ssmpi.bench.contenders import SSMPI, Contender, grid, in_fresh_process, visit_local
from ssmpi.bench.jobs import Jobs, Visit
from ssmpi.bench.options import ThroughputOptions
from ssmpi.bench.reporting import chosen, plain, publish, say
from ssmpi.bench.sections import NOT_SHORT, SECTIONS, Harness
from ssmpi.bench.windows import Timing, summary
from ssmpi.runtime.errors import SettingsError

START_SECONDS = {True: 4.0, False: 1.5}  # of an MPI job, of a local process: for the estimate
SHORT_WINDOW = 0.3  # seconds
RESULT = "throughput.json"


def short(options: ThroughputOptions) -> ThroughputOptions:
    """Options for a run within a minute: a smoke test, not a measurement."""
    seconds = min(options.seconds, SHORT_WINDOW)
    return dataclasses.replace(options, rounds=1, seconds=seconds, batch=(128,), short=True)


def timing_of(options: ThroughputOptions) -> Timing:
    """The timing of one visit."""
    return Timing(0.5, options.seconds, 1) if options.short else Timing(0.8, options.seconds, 3)


def selected(options: ThroughputOptions, cores: int) -> tuple[list[Contender], list[str]]:
    """Contenders, and names of sections, that ``--only`` lets through; SettingsError if there are none."""
    contenders = grid(options.batch, cores, options.short)
    sections = [name for name in SECTIONS if not (options.short and name in NOT_SHORT)]
    some = [contender for contender in contenders if chosen(contender.name, options.only)]
    some_sections = [name for name in sections if chosen(name, options.only)]
    if not some and not some_sections:
        there = [*(contender.name for contender in contenders), *sections]
        near = difflib.get_close_matches(options.only.lower(), there, n=3, cutoff=0)
        raise SettingsError(
            f"--only '{options.only}' lets nothing through; the nearest of {len(there)} names are"
            f" {', '.join(map(repr, near))}; 'ssmpi bench throughput --names' prints all"
        )
    return some, some_sections


def names(options: ThroughputOptions) -> list[str]:
    """Of the contenders and sections that ``measure`` would measure."""
    contenders, sections = selected(short(options) if options.short else options, reporting.cores())
    return [*(contender.name for contender in contenders), *sections]


def measure(options: ThroughputOptions, run_file: Path | None, overrides: Sequence[str]) -> Path:
    """Run the whole benchmark; prints the report and returns the JSON file. The text is written beside it."""
    options = short(options) if options.short else options
    cores = reporting.cores()
    contenders, sections = selected(options, cores)
    options.folder.mkdir(parents=True, exist_ok=True)
    base = data.base_run_file(run_file, overrides, options.folder, options.short)
    report: dict[str, Any] = {"header": reporting.describe(), "options": plain(options), "run_file": str(base)}
    jobs = Jobs(base, options.folder / "jobs")
    seconds = estimate(options, contenders)
    more = f"about {seconds_of_short_sections(options, sections):.0f} s" if options.short else "which take longer"
    say(
        f"{len(contenders)} contenders, {options.rounds} rounds, {seconds:.0f} s, then {len(sections)} sections, {more}"
    )
    began = time.monotonic()
    report["contenders"] = rounds(options, contenders, jobs)
    harness = Harness(base, jobs, options.batch, cores, timing_of(options), options.short)
    report["sections"] = {name: section(name, harness) for name in sections}
    report["header"] |= {
        "took_seconds": round(time.monotonic() - began),
        **jobs.mpi(),
        **in_fresh_process(reporting.torch_facts),
    }
    return publish(options.folder / RESULT, report, render.table(report))


def rounds(options: ThroughputOptions, contenders: list[Contender], jobs: Jobs) -> dict[str, Any]:
    """All visits, interleaved; figures by contender."""
    visits: dict[str, list[Visit]] = {contender.name: [] for contender in contenders}
    if not options.short and any(c.kind == SSMPI for c in contenders):
        say("one job first that does not count: it compiles what is not compiled yet")
        visit(next(c for c in contenders if c.kind == SSMPI), jobs, Timing(0.2, 0.2, 1))
    for number in range(options.rounds):
        first = number * len(contenders) // options.rounds
        for place, contender in enumerate(contenders[first:] + contenders[:first]):
            found = visit(contender, jobs, timing_of(options))
            visits[contender.name].append(found)
            eps = ", ".join(f"{rate:,.0f}" for rate in found["eps"])
            say(f"round {number + 1}/{options.rounds} {place + 1:>3}/{len(contenders)} {contender.name}: {eps} EPS")
    return {contender.name: figures(contender, visits[contender.name]) for contender in contenders}


def visit(contender: Contender, jobs: Jobs, timing: Timing) -> Visit:
    """One visit: examples per second by window, and the resources used."""
    if contender.kind == SSMPI:
        return jobs.run(contender.ranks, contender.overrides, timing)
    return visit_local(contender, jobs.run_file, timing)


def figures(contender: Contender, visits: Sequence[Visit]) -> dict[str, Any]:
    """The combined figures of a contender's visits; ``cores`` are CPU seconds per second by part, ``others`` those of
    other programs.
    """
    seconds = sum(found["seconds"] for found in visits)
    parts = dict.fromkeys(name for found in visits for name in found["cpu"])
    cores = {part: sum(found["cpu"].get(part, 0.0) for found in visits) / seconds for part in parts}
    busy = sum(found["host"]["busy"] for found in visits) / seconds
    rates = [rate for found in visits for rate in found["eps"]]
    return {
        **plain(contender),
        **summary(rates),
        "per_core_second": sum(rates) / len(rates) / sum(cores.values()),
        "cores": cores,
        "others": max(0.0, busy - sum(cores.values())),
        "rounds_per_second": sum(found["rounds"] for found in visits) / seconds,
        "rss": visits[-1]["rss"],
    }


def section(name: str, harness: Harness) -> Mapping[str, object]:
    """Announce and run one section."""
    say(f"section {name}")
    return SECTIONS[name](harness)


def estimate(options: ThroughputOptions, contenders: list[Contender]) -> float:
    """The estimated seconds of all rounds."""
    return options.rounds * sum(START_SECONDS[c.kind == SSMPI] + timing_of(options).total for c in contenders)


def seconds_of_short_sections(options: ThroughputOptions, sections: Sequence[str]) -> float:
    """The estimated seconds of the sections with ``--short``: MPI jobs of at most four windows."""
    timing = dataclasses.replace(timing_of(options), windows=4)
    return len(sections) * (START_SECONDS[True] + timing.total)
