"""``ssmpi bench cluster``: how each algorithm scales with trainers, measured on this host, and predicted by
``ssmpi.tools.forecast``.

Twenty trainers do not fit on two cores, but their communication does: see ``harness.emulation`` for what is real and
what is emulated. Each visit is a separate MPI job: start, warm-up, a few windows.
"""

from __future__ import annotations

import contextlib
import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ssmpi.bench.harness import data, reporting
from ssmpi.bench.harness.emulation import Emulation
from ssmpi.bench.harness.jobs import Jobs, LauncherCommand
from ssmpi.bench.harness.reporting import chosen, plain, publish, say
from ssmpi.bench.harness.results import JobResult
from ssmpi.bench.harness.virtual_hosts import limited_hosts
from ssmpi.bench.harness.windows import Timing
from ssmpi.bench.options import ClusterOptions
from ssmpi.config import load
from ssmpi.core.errors import SettingsError
from ssmpi.core.settings import require
from ssmpi.tools.forecast import Forecast, LinkSpeeds, Prediction, forecast

ROWS = 300_000
WITHIN = 0.2  # of the prediction
FULL_HOST = 0.9  # of its cores: above it, the host limits the speed, not the emulated hardware
RESULT = "cluster.json"

# Small, so many trainers fit; large dense part, few embedding bytes, so each kind of link can be the first to saturate.
SMALL = (
    "data.batch_size=32", "data.block_rows=2048", "model.bottom=[32,8]", "model.top=[128,64,1]", "embedding.dim=8",
    "dense.optimizer=sgd", "embedding.optimizer=sgd", "topology.threads=1", "embedding.transport=messages",
    "sync.transport=messages", "sync.cpu_share=1.0", "checkpoint.every_minutes=0",
)  # fmt: skip


@dataclass(frozen=True)
class Scenario:
    """``period``: iterations between foreground rounds, 0 for background rounds; ``narrow``: the embedding PSs' links
    are limited too.
    """

    algorithm: str = "none"
    period: int = 0
    sync_ps: int = 0
    embedding_ps: int = 1
    narrow: bool = False

    @property
    def name(self) -> str:
        """The name in tables and for ``--only``: ``FR-EASGD-5, 2 sync PSs``."""
        if self.narrow:
            return f"no rounds, {_count(self.embedding_ps, 'narrow embedding PS')}"
        if self.algorithm == "none":
            return "no rounds"
        pace = f"FR-{self.algorithm.upper()}-{self.period}" if self.period else f"S-{self.algorithm.upper()}"
        return pace + (f", {_count(self.sync_ps, 'sync PS')}" if self.sync_ps else "")

    def overrides(self, trainers: int) -> tuple[str, ...]:
        """The settings of this scenario, on top of the common run file."""
        return (
            f"topology.trainers={trainers}",
            f"topology.sync_ps={self.sync_ps}",
            f"topology.embedding_ps={self.embedding_ps}",
            f"sync.algorithm={self.algorithm}",
            f"sync.pace={'fixed_rate' if self.period else 'shadow'}",
            f"sync.every_iterations={self.period}",
        )

    @property
    def servers(self) -> int:
        """The number of ranks that are not trainers."""
        return self.sync_ps + self.embedding_ps

    def ranks(self, trainers: int) -> int:
        """The number of ranks of its MPI job."""
        return trainers + self.servers


SCENARIOS = (
    Scenario(),
    Scenario("easgd", 5, 1),
    Scenario("easgd", 5, 2),
    Scenario("easgd", 5, 4),
    Scenario("easgd", 30, 1),
    Scenario("easgd", 0, 1),
    Scenario("easgd", 0, 2),
    Scenario("ma"),
    Scenario("ma", 30),
    Scenario("bmuf"),
    Scenario("bmuf", 30),
    Scenario(narrow=True),
    Scenario(embedding_ps=2, narrow=True),
)


def ordered(scenarios: Sequence[Scenario], counts: Sequence[int]) -> list[tuple[Scenario, int]]:
    """All visits, ordered by number of trainers. Averaging needs at least two trainers."""
    averaging = ("ma", "bmuf")
    return [(scenario, n) for n in counts for scenario in scenarios if n > 1 or scenario.algorithm not in averaging]


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number > 1)}"


def timing_of(options: ClusterOptions) -> Timing:
    """The timing of one visit: the warm-up is long enough to fill the queues."""
    return Timing(2 * options.seconds, options.seconds, 3)


def narrow(options: ClusterOptions, scenario: Scenario) -> float | None:
    """Bytes per second of an embedding PS's link; None if it is not limited."""
    return 1e6 * options.embedding_link_mb if scenario.narrow else None


def rates(options: ClusterOptions, scenario: Scenario) -> list[float | None]:
    """The rate of each server's link in rank order; None if it is not limited."""
    return [narrow(options, scenario)] * scenario.embedding_ps + [1e6 * options.link_mb] * scenario.sync_ps


def emulation(options: ClusterOptions, scenario: Scenario) -> Emulation:
    """The ranks' emulation; it includes links only if the kernel does not limit them."""
    links = () if options.virtual_hosts else (1e6 * options.link_mb, narrow(options, scenario))
    return Emulation(options.step_ms / 1e3, *links)


def measure(options: ClusterOptions, run_file: Path | None, overrides: Sequence[str]) -> Path:
    """Run the whole benchmark; prints the table and returns the JSON file. The table is written beside it."""
    visits = ordered([scenario for scenario in SCENARIOS if chosen(scenario.name, options.only)], options.trainers)
    if not visits:
        raise SettingsError(
            f"--only '{options.only}' lets nothing through; there are: {'; '.join(s.name for s in SCENARIOS)}"
        )
    options.folder.mkdir(parents=True, exist_ok=True)
    base = run_file_for(options, run_file, overrides)
    say(
        f"{len(visits)} jobs of up to {max(scenario.ranks(n) for scenario, n in visits)} ranks, "
        f"{timing_of(options).total:g} s each"
    )
    header, rows = reporting.describe(), []
    models = {scenario: expected(options, scenario, base) for scenario, _ in visits}
    with starter(options, visits, base) as start:
        for number, (scenario, trainers) in enumerate(visits):
            rows.append(visit(options, scenario, base, models[scenario].of(trainers), start(scenario, trainers)))
            say(f"{number + 1:>3}/{len(visits)} {line(rows[-1])}")
    report = {"header": header, "options": plain(options), "run_file": str(base), "rows": rows}
    return publish(options.folder / RESULT, report, table(report))


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
    return data.base_run_file(target, tuple(filter(None, (*SMALL, rows, *overrides))), options.folder, short=False)


def expected(options: ClusterOptions, scenario: Scenario, base: Path) -> Forecast:
    """The prediction, for any number of trainers."""
    links = LinkSpeeds(1e6 * options.link_mb, narrow(options, scenario) or math.inf)  # trainers' are not limited
    config = load(base, scenario.overrides(2))
    require(config.topology.group == 1, "topology.group: bench cluster does not emulate groups: set 1")
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
    jobs = Jobs(base, options.folder / "jobs", emulation(options, scenario), start)
    found = jobs.run(scenario.ranks(predicted.trainers), settings, timing_of(options))
    config = load(base, settings)
    return figures(scenario, predicted, found, config.data.batch_size * config.topology.threads)


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


HEADS = (
    f"{'':28} {'trainers':>8} {'EPS':>9} {'predicted':>9} {'off':>6} {'gap':>7} {'predicted':>9} {'cores':>5} "
    f"{'host':>5}  "
    "limited by"
)


BUCKETS = "What limits a link is a token bucket in its server's loop."
VIRTUAL_HOSTS = (
    "What limits a link is the kernel: each server is on a virtual host of its own (namespaces, tc's token bucket "
    "filter), all "
    "trainers on\none more. TCP gets less through than the link's rate; cores are those of the trainers' host."
)


def table(report: dict[str, Any]) -> str:
    """What is emulated, a line per job, and how many jobs match the prediction."""
    options, header = report["options"], report["header"]
    rows = sorted(report["rows"], key=lambda row: [scenario.name for scenario in SCENARIOS].index(row["shape"]))
    near = sum(abs(row["deviation"]) <= WITHIN for row in rows)
    full_hosts = sum(row["host_full"] for row in rows)
    lines = [
        f"Emulated on one host ({header['cores']} cores, load {header['load_before']:.1f} before): dense computation "
        "is a wait of "
        f"{options['step_ms']:g} ms a step,",
        f"sync PS links carry {options['link_mb']:g} MB/s and direction, narrow embedding PS links "
        f"{options['embedding_link_mb']:g} MB/s; links of trainers are not limited.",
        VIRTUAL_HOSTS if options["virtual_hosts"] else BUCKETS,
        "Ranks, messages, rows and rounds are real.",
        "",
        HEADS,
        *map(line, rows),
        "",
        f"EPS within {WITHIN:.0%} of the prediction: {near} of {len(rows)} jobs. Gap: iterations of a thread "
        "between two rounds of a trainer.",
    ]
    if full_hosts:
        lines.append(
            f"* over {FULL_HOST:.0%} of this host's cores were busy ({full_hosts} of {len(rows)} jobs; cores is their "
            "own part): "
            "such a figure is the host's as much as the emulated cluster's. A longer step with slower links has the "
            "same shape."
        )
    return "\n".join(lines)


def line(row: dict[str, Any]) -> str:
    """One row."""
    gap, expected = ("-" if value is None else f"{value:,.1f}" for value in (row["gap"], row["predicted_gap"]))
    mark = "*" if row["host_full"] else " "
    return (
        f"{row['shape']:28} {row['trainers']:8} {row['eps']:9,.0f} {row['predicted_eps']:9,.0f} "
        f"{row['deviation']:+6.0%} "
        f"{gap:>7} {expected:>9} {row['cores']:5.2f} {row['host']:5.0%}{mark} {row['full']}"
    )
