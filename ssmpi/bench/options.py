"""The options of ``ssmpi bench``, each with name, type, default and meaning, and their form on the command line:
``--only`` is the field ``only``, and a tuple is a list with commas.

tyro and simple-parsing do the same, but take a list as separate words and no ``key=value`` settings among them:
``--trainers 1,4,20``, as our pages and scripts have it, is an error there.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from dataclasses import Field, dataclass, field, fields
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Any, TypeVar, get_args, get_origin, get_type_hints

from ssmpi.runtime.errors import SettingsError
from ssmpi.runtime.settings import COUNT, EXAMPLES, SECONDS, positive, require, within

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    T = TypeVar("T", bound=DataclassInstance)
METAVARS = {int: "N", float: "N", Path: "PATH"}
NUMBERS = {int: "integers", float: "numbers"}

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
    short: bool = option(False, "batch 128, one round, few contenders: a smoke test")

    def __post_init__(self) -> None:
        within("--rounds", self.rounds, 1, EXAMPLES)
        positive("--seconds", self.seconds, SECONDS)
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


def add_options(sub: argparse.ArgumentParser, kind: type[DataclassInstance]) -> None:
    """An option for each field of ``kind`` that is one."""
    for name, hint, each in _options(kind):
        text, metavar = each.metadata["text"], each.metadata["metavar"] or METAVARS.get(hint)
        if hint is bool:
            sub.add_argument(name, action="store_true", help=text)
        elif get_origin(hint) is list:
            sub.add_argument(name, action="append", metavar=metavar, help=text)
        else:
            shown = _shown(each.default)
            text += f" (default: {shown})" if shown else ""
            listed = get_origin(hint) is tuple
            names = filter(None, (name, each.metadata["alias"]))
            sub.add_argument(
                *names, type=str if listed else hint, default=shown if listed else each.default, metavar=metavar,
                help=text,
            )  # fmt: skip


def taken(kind: type[T], arguments: argparse.Namespace, **others: object) -> T:
    """What was given, with the fields that are no options; SettingsError for a list that is none."""
    values: dict[str, Any] = {}
    for name, hint, each in _options(kind):
        value = getattr(arguments, each.name)
        if get_origin(hint) is tuple:
            value = listed(name, value, get_args(hint)[0])
        values[each.name] = [] if value is None and get_origin(hint) is list else value
    return kind(**values, **others)


def listed(option: str, text: str, kind: type = int) -> tuple[Any, ...]:
    """``1,8,64`` as values; SettingsError names the option."""
    try:
        return tuple(kind(word) for word in (text.split(",") if text else []) if word or kind is not str)
    except ValueError:
        raise SettingsError(f"{option} takes a comma-separated list of {NUMBERS[kind]}, got '{text}'") from None


def _options(kind: type[DataclassInstance]) -> Iterator[tuple[str, Any, Field[Any]]]:
    """Option, type and field; of ``Path | None`` the type is ``Path``."""
    hints = get_type_hints(kind)
    for each in fields(kind):
        if "text" in each.metadata:
            hint = hints[each.name]
            if isinstance(hint, UnionType):
                hint = get_args(hint)[0]
            yield f"--{each.name.replace('_', '-')}", hint, each


def _shown(default: object) -> str:
    """A default, as it would be given; empty if the text says it."""
    if default is None or default == math.inf:
        return ""
    if isinstance(default, tuple):
        return ",".join(map(_shown, default))
    return f"{default:g}" if isinstance(default, float) else str(default)
