"""``python -m jobs.lab cluster``: how each algorithm scales with trainers, and what groups gain, measured on this host,
and predicted by ``ssmpi.tools.forecast``.

Twenty trainers do not fit on two cores, but their communication does: see ``emulation`` for what is real and
what is emulated. Each visit is a separate MPI job: start, warm-up, a few windows.
"""

from __future__ import annotations

import contextlib
import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.virtual_hosts import limited_hosts

from jobs.lab import rank
from jobs.lab.cluster import edges as cluster_edges
from jobs.lab.cluster.emulation import Emulation
from jobs.lab.cluster.scenarios import SMALL, WHOLE, Scenario, visits
from jobs.lab.cluster.table import FULL_HOST, line, table
from jobs.lab.options import ClusterOptions
from ssmpi.bench.harness import data, reporting
from ssmpi.bench.harness.jobs import Jobs, LauncherCommand
from ssmpi.bench.harness.reporting import chosen, plain, publish, say
from ssmpi.bench.harness.results import JobResult
from ssmpi.bench.harness.windows import Timing
from ssmpi.config import load
from ssmpi.runtime.errors import SettingsError
from ssmpi.runtime.settings import require
from ssmpi.tools.forecast import Forecast, LinkSpeeds, Prediction, forecast

ROWS = 300_000
RESULT = "cluster.json"


def timing_of(options: ClusterOptions, between_rounds: float = 0.0) -> Timing:
    """The timing of one visit: the warm-up is long enough to fill the queues, and a window to have a trainer's round,
    which come so many seconds apart.
    """
    seconds = max(options.seconds, between_rounds)
    return Timing(2 * seconds, seconds, 3)


def seconds_between_rounds(predicted: Prediction, examples: int) -> float:
    """Of a trainer, whose threads together take so many ``examples`` an iteration; 0 without rounds."""
    return (predicted.gap or 0.0) * examples * predicted.trainers / predicted.eps


def narrow(options: ClusterOptions, scenario: Scenario) -> float | None:
    """Bytes per second of an embedding PS's link; None if it is not limited."""
    return 1e6 * options.embedding_link_mb if scenario.narrow else None


def sync_link(options: ClusterOptions, scenario: Scenario) -> float:
    """Bytes per second of a sync PS's link."""
    return 1e6 * (scenario.sync_link_mb or options.link_mb)


def rates(options: ClusterOptions, scenario: Scenario) -> list[float | None]:
    """The rate of each server's link in rank order; None if it is not limited."""
    return [narrow(options, scenario)] * scenario.embedding_ps + [sync_link(options, scenario)] * scenario.sync_ps


def emulation(options: ClusterOptions, scenario: Scenario) -> Emulation:
    """The ranks' emulation; it includes links only if the kernel does not limit them."""
    if options.virtual_hosts:
        return Emulation(options.step_ms / 1e3)
    links = sync_link(options, scenario), narrow(options, scenario), 1e6 * scenario.link_mb or None
    return Emulation(options.step_ms / 1e3, *links)


def measure(options: ClusterOptions, run_file: Path | None, overrides: Sequence[str]) -> Path:
    """Run the whole benchmark; prints the table and returns the JSON file. The table is written beside it."""
    possible = cluster_edges.visits(options) if options.edges else visits(options)
    jobs = [(scenario, n) for scenario, n in possible if chosen(scenario.name, options.only)]
    if not jobs:
        names = "; ".join(dict.fromkeys(scenario.name for scenario, _ in possible))
        raise SettingsError(f"--only '{options.only}' lets nothing through of what {options.trainers} can run: {names}")
    options.folder.mkdir(parents=True, exist_ok=True)
    base = run_file_for(options, run_file, overrides)
    say(
        f"{len(jobs)} jobs of up to {max(scenario.ranks(n) for scenario, n in jobs)} ranks, "
        f"{timing_of(options).total:g} s each, longer where rounds are rare"
    )
    header, rows = reporting.describe(), []
    models = {scenario: expected(options, scenario, base) for scenario, _ in jobs}
    with starter(options, jobs, base) as start:
        for number, (scenario, trainers) in enumerate(jobs):
            rows.append(visit(options, scenario, base, models[scenario].of(trainers), start(scenario, trainers)))
            say(f"{number + 1:>3}/{len(jobs)} {line(rows[-1], rows)}")
    report = {"header": header, "options": plain(options), "run_file": str(base), "rows": rows}
    text = table(report) + (cluster_edges.table(rows) if options.edges else "")
    return publish(options.folder / RESULT, report, text)


def run_file_for(options: ClusterOptions, given: Path | None, overrides: Sequence[str]) -> Path:
    """The run file of all jobs. A given run file contributes only its data; model and rates are emulated. SettingsError
    if it is one of those that are written.
    """
    target = options.folder / "cluster.toml"
    for written in (target, options.folder / "base.toml"):
        require(
            not (given and written.exists() and written.samefile(given)),
            f"{given}: would be replaced by that of the emulation: choose another --folder",
        )
    target.write_text("", encoding="utf-8")
    if given:
        rows = f"data.folder={load(given, overrides).data.folder}"
    elif any(override.replace(" ", "").startswith("data.folder=") for override in overrides):
        rows = ""
    else:
        rows = f"data.folder={data.synthetic(options.folder / 'data', ROWS)}"
    common = WHOLE if options.groups or options.edges else SMALL
    return data.base_run_file(target, tuple(filter(None, (*common, rows, *overrides))), options.folder, short=False)


def expected(options: ClusterOptions, scenario: Scenario, base: Path) -> Forecast:
    """The prediction, for any number of trainers."""
    members = 1e6 * scenario.link_mb or math.inf
    links = LinkSpeeds(sync_link(options, scenario), narrow(options, scenario) or math.inf, members)
    config = load(base, scenario.overrides(2 * scenario.group))
    require(config.topology.group == scenario.group, "topology.group: give groups by --group")
    return forecast(config, options.step_ms / 1e3, links)


@contextlib.contextmanager
def starter(
    options: ClusterOptions, visits: Sequence[tuple[Scenario, int]], base: Path
) -> Iterator[Callable[[Scenario, int], LauncherCommand]]:
    """A function that returns the launcher command of a visit. Virtual hosts exist until the block ends."""
    if not options.virtual_hosts:
        yield lambda scenario, trainers: LauncherCommand()
        return
    servers = max(scenario.servers for scenario, _ in visits)
    with limited_hosts(servers, options.folder, Path(load(base, ()).data.folder)) as hosts:
        yield lambda scenario, trainers: hosts.start(trainers, rates(options, scenario))


def visit(
    options: ClusterOptions, scenario: Scenario, base: Path, predicted: Prediction, start: LauncherCommand
) -> dict[str, Any]:
    """Run one job with the prediction's number of trainers."""
    settings = scenario.overrides(predicted.trainers)
    jobs = Jobs(base, options.folder / "jobs", start, rank.START, asdict(emulation(options, scenario)))
    config = load(base, settings)
    examples = config.data.batch_size * config.topology.threads
    timing = timing_of(options, seconds_between_rounds(predicted, examples))
    return figures(scenario, predicted, jobs.run(scenario.ranks(predicted.trainers), settings, timing), examples)


def figures(scenario: Scenario, predicted: Prediction, found: JobResult, examples: int) -> dict[str, Any]:
    """One row of the table; ``examples`` are those of all threads of a trainer in one iteration of a thread, the unit
    of ``gap``; ``cores`` used by the job; ``host``: share of cores busy.
    """
    eps = statistics.fmean(found["eps"])  # not the median: steps come in bursts between rounds
    iterations = eps * found["seconds"] / examples / predicted.trainers
    gap = iterations / found["rounds"] if found["rounds"] else None
    host = found["host"]["busy"] / found["seconds"] / (reporting.cores() or 1)
    return {
        "shape": scenario.name,
        "group": scenario.group,
        "trainers": predicted.trainers,
        "eps": eps,
        "windows": found["eps"],
        "predicted_eps": predicted.eps,
        "deviation": eps / predicted.eps - 1,
        "gap": gap,
        "predicted_gap": predicted.gap,
        "full": predicted.full,
        "cores": sum(found["cpu"].values()) / found["seconds"],
        "host": host,
        "host_full": host > FULL_HOST,
    }
