"""The options of the benchmarks, each said once: name, type, default and meaning. ``ssmpi.cli`` takes them from the
command line: ``--only`` is the field ``only``, and a tuple is a list with commas.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ssmpi.core.settings import COUNT, EXAMPLES, SECONDS, positive, require, within

SHAPES = 0.1, 1000.0  # of the times between losses: from bursts to nearly even intervals
CODECS = "dense", "bf16", "threshold:0.95", "threshold:0.99", "threshold:0.99:bf16", "random-k:0.99"


def option(default: object, text: str, metavar: str = "", alias: str = "") -> Any:
    """A field that is an option; ``alias`` is a name that it had."""
    return field(default=default, metadata={"text": text, "metavar": metavar, "alias": alias})


def folder() -> Any:
    """``--folder``."""
    return option(Path("runs/bench"), "where results and synthetic data go")


def only(what: str) -> Any:
    """``--only``."""
    return option("", f"{what} whose name contains this; * matches anything, a|b is either", "PATTERN")


@dataclass(frozen=True, kw_only=True)
class ThroughputOptions:
    """``ssmpi bench throughput``."""

    folder: Path = folder()
    rounds: int = option(2, "visits to every contender")
    seconds: float = option(0.7, "length of a window, 3 a visit", "S")
    batch: tuple[int, ...] = option((128, 512, 2048), "batch sizes", "SIZES")
    only: str = only("contenders and sections")
    names: bool = option(False, "print the names that --only chooses from, or lets through, and measure nothing")
    shares: tuple[float, ...] = option(
        (0.0, 1.0), "values of sync.cpu_share for the section shadow, 0 for the shipped one", "SHARES"
    )
    short: bool = option(False, "batch 128, one round, few contenders: a smoke test")

    def __post_init__(self) -> None:
        within("--rounds", self.rounds, 1, EXAMPLES)
        positive("--seconds", self.seconds, SECONDS)
        require(
            bool(self.shares) and all(0 <= share <= 1 for share in self.shares),
            f"--shares must list shares of a core, 0 to 1, got {self.shares}",
        )
        require(bool(self.batch) and min(self.batch) >= 1, f"--batch must list positive sizes, got {self.batch}")


@dataclass(frozen=True, kw_only=True)
class ClusterOptions:
    """``ssmpi bench cluster``."""

    folder: Path = folder()
    trainers: tuple[int, ...] = option((1, 2, 4, 8, 16), "of the jobs", "NUMBERS")
    step_ms: float = option(50.0, "a dense step", "MS")
    link_mb: float = option(4.0, "a sync PS's link, MB/s in each direction", "MB")
    embedding_link_mb: float = option(2.0, "the same of a narrow embedding PS", "MB")
    seconds: float = option(2.0, "length of a window, 3 a job after 2 of warm-up", "S")
    only: str = only("scenarios")
    group: tuple[int, ...] = option(
        (1,),
        "trainers that hold a replica together; 2 or more: by every plan, beside as many trainers alone",
        "NUMBERS",
    )
    rank_link_mb: tuple[float, ...] = option((25.0,), "a member's link, MB/s in each direction", "MB")
    edges: tuple[float, ...] = option(
        (), "groups of two over a dense and a sparse edge, whose bytes take so many steps if it is dense", "STEPS"
    )
    virtual_hosts: bool = option(
        False, "each server on a virtual host whose link the kernel limits (root, Linux; jobs/cluster_on_hosts.sh)"
    )

    def __post_init__(self) -> None:
        require(
            bool(self.trainers) and min(self.trainers) >= 1,
            f"--trainers must list positive numbers, got {self.trainers}",
        )
        require(bool(self.group) and min(self.group) >= 1, f"--group must list positive numbers, got {self.group}")
        require(bool(self.rank_link_mb), "--rank-link-mb must list speeds, got none")
        for speed in self.rank_link_mb:
            positive("--rank-link-mb", speed, SECONDS)
        for steps in self.edges:
            positive("--edges", steps, SECONDS)
        for name in ("step_ms", "link_mb", "embedding_link_mb", "seconds"):
            positive(f"--{name.replace('_', '-')}", getattr(self, name), SECONDS)
        require(
            not ((self.groups or self.edges) and self.virtual_hosts),
            "--virtual-hosts puts all trainers on one host, so the kernel cannot limit the links between members of a "
            "group: leave out --virtual-hosts, or --group and --edges",
        )

    @property
    def groups(self) -> bool:
        """Whether groups are asked for."""
        return max(self.group) > 1


@dataclass(frozen=True, kw_only=True)
class EmulationOptions:
    """``ssmpi bench recovery``. ``inputs`` are the given inputs of the policy, by name."""

    folder: Path = folder()
    seeds: tuple[int, ...] = option((1, 2), "each sets initial values, order of the data and losses", "NUMBERS")
    at_once: int = option(1, "embedding PSs per loss")
    gamma_shape: float = option(1.0, "shape of the gamma distribution of times between losses, 1: exponential", "K")
    trials: Path | None = option(
        None, "finished runs, a JSON object per line, which are not repeated (default: trials.jsonl in the folder)",
        "FILE",
    )  # fmt: skip
    only: str = only("strategies")
    short: bool = option(False, "a small model on few rows: a smoke test")
    inputs: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        within("--gamma-shape", self.gamma_shape, *SHAPES)
        different = 0 < len(set(self.seeds)) == len(self.seeds)
        require(different, f"--seeds must list different seeds, got {self.seeds}")


@dataclass(frozen=True, kw_only=True)
class CompressionOptions:
    """``ssmpi bench compression``."""

    codecs: tuple[str, ...] = option(CODECS, "codecs, see sync.codec", "CODECS")
    entries: int = option(1_000_000, "entries of the vector")
    rounds: int = option(15, "turns of all codecs")
    output: Path | None = option(None, "JSON file with all results", "FILE", "--out")

    def __post_init__(self) -> None:
        within("--entries", self.entries, 1, 2**30)
        within("--rounds", self.rounds, 2, EXAMPLES)


@dataclass(frozen=True, kw_only=True)
class PrepareOptions:
    """``ssmpi bench prepare``."""

    folder: Path = folder()
    rows: int = option(2_000_000, "of each file")
    rounds: int = option(3, "visits to every command")
    only: str = only("commands")
    short: bool = option(False, "few rows, one round: a smoke test")

    def __post_init__(self) -> None:
        within("--rows", self.rows, 100_000, EXAMPLES)
        within("--rounds", self.rounds, 1, EXAMPLES)


@dataclass(frozen=True, kw_only=True)
class TablesOptions:
    """``ssmpi bench tables``."""

    features: int = option(26, "features, each with an id an example")
    rows: int = option(100_000, "rows of a feature's table")
    dim: int = option(16, "floats of a row")
    skew: float = option(1.05, "exponent of Zipf's law, by which ids are drawn")
    batch: tuple[int, ...] = option((128, 2048), "batch sizes", "SIZES")
    turns: int = option(21, "turns of all kinds of tables")
    output: Path | None = option(None, "JSON file with all results", "FILE", "--out")

    def __post_init__(self) -> None:
        within("--features", self.features, 1, 1000)
        within("--rows", self.rows, 1, COUNT // self.features // 2)
        within("--dim", self.dim, 1, 65_536)
        positive("--skew", self.skew, 10.0)
        require(bool(self.batch) and min(self.batch) >= 1, f"--batch must list positive sizes, got {self.batch}")
        within("--turns", self.turns, 1, EXAMPLES)


@dataclass(frozen=True, kw_only=True)
class ScaleOptions:
    """``ssmpi bench scale``."""

    ranks: tuple[int, ...] = option((8, 32), "ranks of the jobs", "NUMBERS")
    kills: int = option(5, "then kill a rank this many times, and print how long it takes to resume training")
    folder: Path = folder()

    def __post_init__(self) -> None:
        require(bool(self.ranks), "--ranks must list numbers of ranks, got none")
        within("--kills", self.kills, 0, EXAMPLES)


@dataclass(frozen=True, kw_only=True)
class LockstepOptions:
    """``ssmpi bench lockstep``."""

    gap: float = option(20.0, "iterations between rounds")
    staleness: int = option(0, "iterations between snapshot and merge")
    steps: int = option(0, "end after so many iterations; 0: with the data")
    seed: int = option(1, "the first, of initial values and of the order of rows", "SEED")
    interleaving: int = option(0, "shuffle the order of steps; 0: no shuffling", "SEED")
    vary: tuple[str, ...] = option(("dense", "embedding", "order"), "seeds to vary: these, or interleaving", "SEEDS")
    case: list[str] = option(
        (), "compare with these settings too, by pairs of seeds; also 'gap=N', 'feedback=off' (repeatable)", "SETTINGS"
    )
    runs: int = option(1, "runs, each with the next seed")
    output: Path | None = option(None, "JSON file with all results", "FILE", "--out")


@dataclass(frozen=True, kw_only=True)
class EquivalenceOptions:
    """``ssmpi bench equivalence``."""

    minutes: float = option(
        math.inf,
        "start no run after this many minutes, 0 only prints; the same command continues (default: to the end)",
    )
    jobs: int = option(1, "runs at the same time, a core each")
    trials: Path | None = option(
        None, "run nothing; print the results of the trials recorded in FILE, such as the published *-trials.jsonl",
        "FILE",
    )  # fmt: skip
