"""The options of ``ssmpi bench``, each said once: name, type, default and meaning. ``ssmpi.cli`` takes them from the
command line: ``--only`` is the field ``only``, and a tuple is a list with commas.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ssmpi.runtime.settings import COUNT, EXAMPLES, SECONDS, positive, require, within

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
