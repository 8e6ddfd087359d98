"""``python -m jobs.lab cluster``: how each algorithm scales with trainers where links of sync PSs are full, measured on
this host and predicted by ``ssmpi.tools.bottleneck``.

Twenty trainers do not fit on two cores, but their communication does: ``emulation`` says what is real. Each visit is a
separate MPI job: start, warm-up, a few windows.

Decided: EPS is linear up to 20 trainers with rounds in the background; in the foreground the sync PSs' links limit it.
Last run at bf51829. Groups, edges behind a ``TopK``, slow links of embedding PSs and links that the kernel limits were
measured by this command at bf51829, 2b511658 and earlier; 31058d45 is the last commit that has them.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from jobs.lab import emulation
from jobs.lab.emulation import Emulation
from jobs.lab.options import ClusterOptions
from ssmpi.bench import data, reporting
from ssmpi.bench.jobs import JobResult, Jobs
from ssmpi.bench.reporting import chosen, plain, publish, say
from ssmpi.bench.windows import Timing
from ssmpi.config import load
from ssmpi.runtime.errors import SettingsError
from ssmpi.runtime.settings import require
from ssmpi.runtime.words import counted
from ssmpi.state.requirements import placement_of
from ssmpi.tools.bottleneck import Estimate, LinkSpeeds, estimate

ROWS = 300_000
RESULT = "cluster.json"
WITHIN = 0.2  # of the prediction
FULL_HOST = 0.9  # of its cores: above it, the host limits the speed, not the emulated hardware

# Small, so many trainers fit, with a large dense part, so that links of sync PSs fill.
SMALL = (
    "data.batch_size=32", "data.block_rows=2048", "model.bottom=[32,8]", "model.top=[128,64,1]", "embedding.dim=8",
    "dense.optimizer=sgd", "embedding.optimizer=sgd", "topology.threads=1", "run.shared_memory=false",
    "sync.cpu_share=1.0", "checkpoint.every_minutes=0",
)  # fmt: skip


@dataclass(frozen=True)
class Scenario:
    """``period``: iterations between foreground rounds, 0 for background rounds."""

    algorithm: str = "none"
    period: int = 0
    sync_ps: int = 0

    @property
    def name(self) -> str:
        """The name in tables and for ``--only``: ``FR-EASGD-5, 2 sync PSs``."""
        if self.algorithm == "none":
            return "no rounds"
        pace = f"FR-{self.algorithm.upper()}-{self.period}" if self.period else f"S-{self.algorithm.upper()}"
        return pace + (f", {counted(self.sync_ps, 'sync PS')}" if self.sync_ps else "")

    def overrides(self, trainers: int) -> tuple[str, ...]:
        """The settings of this scenario, on top of the common run file."""
        return (
            f"topology.trainers={trainers}",
            f"topology.sync_ps={self.sync_ps}",
            "topology.embedding_ps=1",
            f"sync.algorithm={self.algorithm}",
            f"sync.pace={'fixed_rate' if self.period else 'shadow'}",
            f"sync.every_iterations={self.period}",
        )

    def ranks(self, trainers: int) -> int:
        """The number of ranks of its MPI job."""
        return trainers + self.sync_ps + 1

    def fits(self, trainers: int) -> bool:
        """Whether so many trainers can run it: averaging needs at least two replicas."""
        return trainers > 1 or self.algorithm not in ("ma", "bmuf")


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
)


def measure(options: ClusterOptions, run_file: Path | None, overrides: Sequence[str]) -> Path:
    """Run the whole benchmark; prints the table and returns the JSON file. The table is written beside it."""
    possible = [(scenario, n) for n in options.trainers for scenario in SCENARIOS if scenario.fits(n)]
    visits = [(scenario, n) for scenario, n in possible if chosen(scenario.name, options.only)]
    if not visits:
        names = "; ".join(dict.fromkeys(scenario.name for scenario, _ in possible))
        raise SettingsError(f"--only '{options.only}' lets nothing through of what {options.trainers} can run: {names}")
    options.folder.mkdir(parents=True, exist_ok=True)
    base = run_file_for(options, run_file, overrides)
    say(f"{len(visits)} jobs of up to {max(scenario.ranks(n) for scenario, n in visits)} ranks")
    header, rows = reporting.describe(), []
    for number, (scenario, trainers) in enumerate(visits):
        rows.append(visit(options, scenario, base, trainers))
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


def visit(options: ClusterOptions, scenario: Scenario, base: Path, trainers: int) -> dict[str, Any]:
    """Run one job, whose windows have a round of each trainer at least; its row of the table."""
    settings, link, step = scenario.overrides(trainers), 1e6 * options.link_mb, options.step_ms / 1e3
    config = load(base, settings)
    predicted = estimate(config, placement_of(config), step, LinkSpeeds(sync_ps=link))
    examples = config.data.batch_size * config.topology.threads
    between_rounds = (predicted.gap or 0.0) * examples * trainers / predicted.eps
    seconds = max(options.seconds, between_rounds)
    jobs = Jobs(base, options.folder / "jobs", emulation.START, asdict(Emulation(step, link)))
    found = jobs.run(scenario.ranks(trainers), settings, Timing(2 * seconds, seconds, 3))
    return {"shape": scenario.name, "trainers": trainers, **figures(predicted, found, examples * trainers)}


def figures(predicted: Estimate, found: JobResult, examples: int) -> dict[str, Any]:
    """What was measured beside the prediction; ``examples`` are those of all threads in one iteration, the unit of
    ``gap``; ``cores`` used by the job; ``host``: share of cores busy.
    """
    eps = statistics.fmean(found["eps"])  # not the median: steps come in bursts between rounds
    host = found["host"]["busy"] / found["seconds"] / (reporting.cores() or 1)
    return {
        "eps": eps,
        "windows": found["eps"],
        "predicted_eps": predicted.eps,
        "deviation": eps / predicted.eps - 1,
        "gap": eps * found["seconds"] / examples / found["rounds"] if found["rounds"] else None,
        "predicted_gap": predicted.gap,
        "full": predicted.slowest,
        "cores": sum(found["cpu"].values()) / found["seconds"],
        "host": host,
        "host_full": host > FULL_HOST,
    }


def table(report: Mapping[str, Any]) -> str:
    """What is emulated, a line per job, and how many jobs match the prediction."""
    options, header = report["options"], report["header"]
    names = [scenario.name for scenario in SCENARIOS]
    rows = sorted(report["rows"], key=lambda row: names.index(row["shape"]))
    near = sum(abs(row["deviation"]) <= WITHIN for row in rows)
    full_hosts = sum(row["host_full"] for row in rows)
    lines = [
        f"Emulated on one host ({header['cores']} cores, load {header['load_before']:.1f} before): dense computation "
        f"is a wait of {options['step_ms']:g} ms a step,",
        f"sync PS links are token buckets of {options['link_mb']:g} MB/s and direction; links of trainers are not "
        "limited. Ranks, messages, rows and rounds are real.",
        "",
        f"{'':24} {'trainers':>8} {'EPS':>9} {'predicted':>9} {'off':>6} {'gap':>7} {'predicted':>9} {'cores':>5} "
        f"{'host':>5}  limited by",
        *map(line, rows),
        "",
        f"EPS within {WITHIN:.0%} of the prediction: {near} of {len(rows)} jobs. Gap: iterations of a thread between "
        "two rounds of a trainer.",
    ]
    if full_hosts:
        lines.append(
            f"* over {FULL_HOST:.0%} of this host's cores were busy ({full_hosts} of {len(rows)} jobs; cores is their "
            "own part): such a figure is the host's as much as the emulated cluster's. A longer step with slower links "
            "has the same shape."
        )
    return "\n".join(lines)


def line(row: Mapping[str, Any]) -> str:
    """One line of the table."""
    found, expected = ("-" if value is None else f"{value:,.1f}" for value in (row["gap"], row["predicted_gap"]))
    mark = "*" if row["host_full"] else " "
    return (
        f"{row['shape']:24} {row['trainers']:8} {row['eps']:9,.0f} {row['predicted_eps']:9,.0f} "
        f"{row['deviation']:+6.0%} {found:>7} {expected:>9} {row['cores']:5.2f} {row['host']:5.0%}{mark} {row['full']}"
    )
