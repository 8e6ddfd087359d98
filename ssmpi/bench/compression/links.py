"""``ssmpi bench compression --only links``: on which links the codecs of ``async_ps`` pay.

Each step ends with a push and a pull (plain asynchronous SGD), so link time adds to the step. Dense computation and
links are emulated by waiting (``harness.emulation``), unless the kernel limits the links (``--virtual-hosts``); ranks,
messages, codecs and payloads are real. A link is specified by the time of a dense push and pull over it, as a share of
the step. The table also has the predictions of ``ssmpi plan --predict``, and last this host with real steps and links.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ssmpi.bench.harness import data, machine
from ssmpi.bench.harness.emulation import Emulation
from ssmpi.bench.harness.jobs import Jobs, LauncherCommand
from ssmpi.bench.harness.limited_links import limited_hosts
from ssmpi.bench.harness.reporting import plain, publish, say
from ssmpi.bench.harness.windows import Timing
from ssmpi.config import Config, load
from ssmpi.core.settings import SECONDS, positive, require
from ssmpi.run.requirements import dense_parameters
from ssmpi.tools.codec_benefit import WANTED
from ssmpi.tools.forecast import forecast
from ssmpi.tools.link_model import LinkSpeeds

RESULT, SHORT_ROWS = "compression_links.json", 12_000
SMALL = (
    "data.batch_size=32", "data.block_rows=512", "model.bottom=[32,8]", "model.top=[256,128,1]", "embedding.dim=8",
    "dense.optimizer=sgd", "embedding.optimizer=sgd", "topology.threads=1", "topology.embedding_ps=1",
    "topology.sync_ps=1", "sync.algorithm=async_ps", "sync.pace=fixed_rate", "sync.every_iterations=1",
    "checkpoint.every_minutes=0",
)  # fmt: skip
NOT_LIMITED, THIS_HOST = 0.0, -1.0  # instead of a share


@dataclass(frozen=True)
class Coding:
    """The codecs of pushes and of pulls."""

    push: str = "dense"
    pull: str = "dense"

    @property
    def overrides(self) -> tuple[str, str]:
        """The codecs as settings."""
        return f"sync.codec={self.push}", f"sync.pull_codec={self.pull}"


@dataclass(frozen=True, kw_only=True)
class LinkOptions:
    """``shares``: link time of a dense push and pull as a share of a step of ``step_ms``; ``codec`` is used for pushes,
    then for pulls too.
    """

    folder: Path = Path("runs/bench")
    trainers: int = 1
    shares: tuple[float, ...] = (0.25, 0.5, 1.0, 2.0, 4.0)
    step_ms: float = 50.0
    seconds: float = 1.0
    codec: str = "threshold:0.99"
    virtual_hosts: bool = False

    def __post_init__(self) -> None:
        require(self.trainers >= 1, f"--trainers must be positive, got {self.trainers}")
        require(bool(self.shares), "--shares must list positive numbers")
        for share in self.shares:
            positive("--shares", share, SECONDS)
        positive("--step-ms", self.step_ms, SECONDS)
        positive("--seconds", self.seconds, SECONDS)
        slowest, measured = self.step_ms / 1e3 * (1 + self.trainers * max(self.shares)), 3 * self.seconds
        require(
            slowest <= measured,
            f"--shares: a step over the slowest link takes {slowest:g} s, more than the {measured:g} s of all windows: "
            "lengthen them with --seconds",
        )

    @property
    def codings(self) -> tuple[Coding, ...]:
        """The codings to compare."""
        return Coding(), Coding(self.codec), Coding(self.codec, self.codec)

    @property
    def timing(self) -> Timing:
        """The timing of one visit."""
        return Timing(2 * self.seconds, self.seconds, 3)

    def rate(self, share: float, parameters: int) -> float:
        """The rate of such a link, in bytes per second and direction."""
        return 8.0 * parameters / (share * self.step_ms / 1e3) if share > 0 else math.inf


def measure(options: LinkOptions, overrides: Sequence[str]) -> Path:
    """Run the whole section; prints the table and returns the JSON file. The table is written beside it."""
    options.folder.mkdir(parents=True, exist_ok=True)
    base, header, rows = run_file(options, overrides), machine.describe(), []
    shares = (NOT_LIMITED, *options.shares, *(() if options.virtual_hosts else (THIS_HOST,)))
    visits = [(share, coding) for share in shares for coding in options.codings]
    say(f"{len(visits)} jobs of {options.trainers + 2} ranks, {options.timing.total:g} s each")
    with starter(options, base) as start:
        for number, (share, coding) in enumerate(visits):
            config = load(base, coding.overrides)
            rate = options.rate(share, dense_parameters(config))
            emulation = None if share == THIS_HOST else emulated(options, rate)
            jobs = Jobs(base, options.folder / "jobs", emulation, start(rate))
            found = jobs.run(options.trainers + 2, coding.overrides, options.timing)
            eps, sent = statistics.median(found["eps"]), found["bytes"]["center_push"] + found["bytes"]["center_pull"]
            rows.append({
                "share": share, "rate": None if math.isinf(rate) else rate, "push": coding.push, "pull": coding.pull,
                "eps": eps, "windows": found["eps"], "bytes": sent / found["rounds"] / options.trainers,
                "predicted_eps": predict(options, config, rate) if share != THIS_HOST else None,
            })  # fmt: skip
            say(f"{number + 1:>3}/{len(visits)} share {share:g}, {coding.push}, {coding.pull}: {eps:,.0f} EPS")
    report = {"header": header, "options": plain(options), "run_file": str(base), "rows": rows}
    return publish(options.folder / RESULT, report, table(report), lambda *_: None)


def run_file(options: LinkOptions, overrides: Sequence[str]) -> Path:
    """The common run file of all jobs, with synthetic rows unless ``overrides`` name a data folder."""
    given = any(override.replace(" ", "").startswith("data.folder=") for override in overrides)
    rows = () if given else (f"data.folder={data.synthetic(options.folder / 'data', SHORT_ROWS)}",)
    target = options.folder / "links.toml"
    target.write_text("", encoding="utf-8")
    settings = (*SMALL, f"topology.trainers={options.trainers}", *rows, *overrides)
    return data.base_run_file(target, settings, options.folder, short=True)


@contextlib.contextmanager
def starter(options: LinkOptions, base: Path) -> Iterator[Callable[[float], LauncherCommand]]:
    """A function that returns the command to start ranks with a link of ``rate`` bytes per second to the sync PS."""
    if not options.virtual_hosts:
        yield lambda rate: LauncherCommand()
        return
    with limited_hosts(2, options.folder, Path(load(base, ()).data.folder)) as hosts:
        yield lambda rate: hosts.start(options.trainers, [None, None if math.isinf(rate) else rate])


def emulated(options: LinkOptions, rate: float) -> Emulation:
    """Emulated steps, and an emulated link unless the kernel limits it."""
    return Emulation(options.step_ms / 1e3, None if options.virtual_hosts or math.isinf(rate) else rate)


def predict(options: LinkOptions, config: Config, rate: float) -> float:
    """EPS predicted as by ``plan --predict``."""
    return forecast(config, options.step_ms / 1e3, LinkSpeeds(sync_ps=rate)).of(options.trainers).eps


def reached(rows: Sequence[dict[str, Any]], key: str) -> dict[str, float]:
    """For each coding, by name, the smallest share at which it reaches ``WANTED`` times the EPS of dense rounds,
    interpolated between measured shares; infinity if it never does.
    """
    limited = [row for row in rows if row["share"] != THIS_HOST]
    dense = {row["share"]: row[key] for row in limited if name(row) == DENSE}
    found = {}
    for coding in dict.fromkeys(map(name, limited)):
        gains = sorted((row["share"], row[key] / dense[row["share"]]) for row in limited if name(row) == coding)
        found[coding] = next(
            (a + (b - a) * (WANTED - x) / (y - x) for (a, x), (b, y) in itertools.pairwise(gains) if x < WANTED <= y),
            math.inf,
        )
    return found


def name(row: dict[str, Any]) -> str:
    """The name of a row's coding."""
    return f"push {row['push']}, pull {row['pull']}"


DENSE = "push dense, pull dense"
HEAD = f"{'link time : step':>17}  {'MB/s':>7}  {'':40} {'EPS':>7} {'predicted':>9} {'x dense':>8} {'kB a round':>10}"


def table(report: dict[str, Any]) -> str:
    """What is emulated, a line per job, and the shares at which the wanted gain is reached."""
    options, rows = report["options"], report["rows"]
    dense = {row["share"]: row["eps"] for row in rows if name(row) == DENSE}
    by = "the kernel (each server on a virtual host)" if options["virtual_hosts"] else "a token bucket in the sync PS"
    lines = [
        f"async_ps, a push and a pull after each step; {options['trainers']} trainers, a step is a wait of "
        f"{options['step_ms']:g} ms, links are limited by {by}.",
        "Link time is that of a dense push and pull.",
        "",
        HEAD,
    ]
    for row in rows:
        share = "this host" if row["share"] == THIS_HOST else f"{row['share']:g}" if row["share"] else "not limited"
        rate = f"{row['rate'] / 1e6:7.1f}" if row["share"] > 0 else f"{'-':>7}"
        predicted = f"{row['predicted_eps']:9,.0f}" if row["predicted_eps"] else f"{'-':>9}"
        gain = row["eps"] / dense[row["share"]]
        figures = f"{row['eps']:7,.0f} {predicted} {gain:8.2f} {row['bytes'] / 1e3:10,.1f}"
        lines.append(f"{share:>17}  {rate}  {name(row):40} {figures}")
    lines.append("")
    measured, expected = reached(rows, "eps"), reached(rows, "predicted_eps")
    for coding in list(measured)[1:]:
        where, by_plan = (
            f"at {found[coding]:.2f}" if found[coding] < math.inf else "nowhere" for found in (measured, expected)
        )
        lines.append(f"{WANTED} times the EPS of dense rounds: {coding}: {where} of a step (predicted: {by_plan})")
    return "\n".join(lines)
