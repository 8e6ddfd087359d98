"""The options of the laboratory's commands, each said once, as in ``ssmpi.bench.options``."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ssmpi.bench.options import folder, only, option
from ssmpi.runtime.settings import EXAMPLES, SECONDS, positive, require, within

RECIPE_DATA = "movielens", "quickstart", "rare"
RECIPE_SIDES = "ssmpi", "fuxictr", "fuxictr-own-start"  # the last with its own initial values
SHAPES = 0.1, 1000.0  # of the times between losses: from bursts to nearly even intervals


@dataclass(frozen=True, kw_only=True)
class ClusterOptions:
    """``python -m jobs.lab cluster``."""

    folder: Path = folder()
    trainers: tuple[int, ...] = option((1, 2, 4, 8, 16), "of the jobs", "NUMBERS")
    step_ms: float = option(50.0, "a dense step", "MS")
    link_mb: float = option(4.0, "a sync PS's link, MB/s in each direction", "MB")
    seconds: float = option(2.0, "length of a window, 3 a job after 2 of warm-up", "S")
    only: str = only("scenarios")

    def __post_init__(self) -> None:
        require(
            bool(self.trainers) and min(self.trainers) >= 1,
            f"--trainers must list positive numbers, got {self.trainers}",
        )
        for name in ("step_ms", "link_mb", "seconds"):
            positive(f"--{name.replace('_', '-')}", getattr(self, name), SECONDS)


@dataclass(frozen=True, kw_only=True)
class EmulationOptions:
    """``python -m jobs.lab recovery``. ``inputs`` are the given inputs of the policy, by name."""

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
class ScaleOptions:
    """``python -m jobs.lab scale``."""

    ranks: tuple[int, ...] = option((8, 32), "ranks of the jobs", "NUMBERS")
    kills: int = option(5, "then kill a rank this many times, and print how long it takes to resume training")
    folder: Path = folder()

    def __post_init__(self) -> None:
        require(bool(self.ranks), "--ranks must list numbers of ranks, got none")
        within("--kills", self.kills, 0, EXAMPLES)


@dataclass(frozen=True, kw_only=True)
class LockstepOptions:
    """``python -m jobs.lab lockstep``."""

    gap: float = option(20.0, "iterations between rounds")
    staleness: int = option(0, "iterations between snapshot and merge")
    steps: int = option(0, "end after so many iterations; 0: with the data")
    seed: int = option(1, "the first, of initial values and of the order of rows", "SEED")
    interleaving: int = option(0, "shuffle the order of steps; 0: no shuffling", "SEED")
    vary: tuple[str, ...] = option(("dense", "embedding", "order"), "seeds to vary: these, or interleaving", "SEEDS")
    case: list[str] = option(
        (),
        "compare with these settings too, by pairs of seeds; also 'gap=N', 'feedback=off', and of rows in 16 bits"
        " 'rounding=nearest' (repeatable)",
        "SETTINGS",
    )
    runs: int = option(1, "runs, each with the next seed")
    output: Path | None = option(None, "JSON file with all results", "FILE", "--out")


@dataclass(frozen=True, kw_only=True)
class EquivalenceOptions:
    """``python -m jobs.lab equivalence``."""

    minutes: float = option(
        math.inf,
        "start no run after this many minutes, 0 only prints; the same command continues (default: to the end)",
    )
    jobs: int = option(1, "runs at the same time, a core each")
    trials: Path | None = option(
        None, "run nothing; print the results of the trials recorded in FILE, such as the published *-trials.jsonl",
        "FILE",
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class RecipesOptions:
    """``python -m jobs.lab recipes``."""

    folder: Path = option(Path("data/recipes"), "where rows, FuxiCTR, runs and records go")
    data: tuple[str, ...] = option(RECIPE_DATA, "data sets", "NAMES")
    sides: tuple[str, ...] = option(RECIPE_SIDES[:2], "these, or fuxictr-own-start", "NAMES")
    seeds: tuple[int, ...] = option(tuple(range(1, 11)), "of initial values, order of rows and dropout", "NUMBERS")
    minutes: float = option(
        math.inf, "start no run after so many, 0: only print the tables of the records (default: to the end)"
    )
    records: Path | None = option(None, "finished runs (default: recipes.jsonl in the folder)", "FILE")

    def __post_init__(self) -> None:
        for name, known in (("data", RECIPE_DATA), ("sides", RECIPE_SIDES)):
            given = getattr(self, name)
            require(
                bool(given) and set(given) <= set(known),
                f"--{name} lists some of {', '.join(known)}, got {', '.join(given)}",
            )
        require(bool(self.seeds), "--seeds must list numbers, got none")
