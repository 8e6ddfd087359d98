"""The schema of a table: which columns are label, features, time and split."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from ssmpi.data.features import Features, ListOptions
from ssmpi.runtime.errors import UserError

NUMBER, INTEGER, STRING, TIMESTAMP = "number", "integer", "string", "timestamp"
LIST, WEIGHTS = "list", "weights"
TRANSFORMS = ("none", "log1p", "standardize")
REFUSE = "refuse"
BRACKETS = "[]"  # in place of a separator: lists in brackets
MOST_RANGE = 2**31 - 3
MOST_LISTED = 100_000  # values of a list
LINE, MULTILINE, UNQUOTED = QUOTINGS = ("line", "multiline", "none")  # where quoted values end; none are quoted
KEYS = 2**64  # the range of hashes that are keys of a dynamic table, in place of ids


@dataclass(frozen=True)
class Label:
    """A column of 0 and 1, or a rule: ``column operator value``."""

    column: str
    operator: str = ""
    value: float | str = 1.0

    @property
    def kind(self) -> str:
        """How the column is read."""
        return STRING if isinstance(self.value, str) else NUMBER


@dataclass(frozen=True)
class Dense:
    """A dense feature. ``missing``: the value taken for a missing one, before the transform; None for 0 after it;
    ``refuse`` if a row without it is bad."""

    transform: str = "none"
    missing: float | str | None = None


@dataclass(frozen=True)
class Categorical:
    """A sparse feature; ``hash`` 0: ids from a vocabulary; ``KEYS``: hashes of tokens; else tokens modulo it."""

    type: str = STRING
    min_count: int = 0  # 0: that of the command line
    hash: int = 0


@dataclass(frozen=True, kw_only=True)
class ListColumn(Categorical):
    """A sparse feature with a list in each row, pooled by ``pooling``. ``separator``: what lies between the values in
    text, or ``BRACKETS``. A list of more than ``longest`` values is bad, or ends there with ``truncate``. ``weights``:
    the column that has a number for each value of a list; empty if they have none.
    """

    longest: int
    separator: str = "|"
    truncate: bool = False
    pooling: str = "sum"
    weights: str = ""

    @property
    def options(self) -> ListOptions:
        """As a data set records it."""
        return ListOptions(self.pooling, bool(self.weights), longest=self.longest)


@dataclass(frozen=True)
class SplitRule:
    """Which split a row is in: by its number, at random, by ``column`` (``values``: the splits of its values), by file
    (``values``: of patterns of paths) or by time (``until``: the ends of train and validation; numbers or microseconds
    of UTC).
    """

    by: str = "rows"
    shares: tuple[float, ...] = (0.8, 0.1, 0.1)
    column: str = ""
    values: Mapping[str, int] = field(default_factory=dict)
    type: str = STRING
    until: tuple[float, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Schema:
    """What ``schema.toml`` says. ``columns``: names for files without a header."""

    path: Path
    dense: Mapping[str, Dense]
    categorical: Mapping[str, Categorical]
    lists: Mapping[str, ListColumn] = field(default_factory=dict)
    label: Label | None = None
    time: str = ""
    group: str = ""
    split: SplitRule = SplitRule()
    separator: str = ","
    columns: tuple[str, ...] = ()
    missing: tuple[str, ...] = ("",)
    quoting: str = LINE

    @property
    def features(self) -> Features:
        """The features, in the order of the schema; lists after the other sparse ones."""
        keyed = tuple(name for name, column in self.categorical.items() if column.hash == KEYS)
        lists = {name: column.options for name, column in self.lists.items()}
        return Features(tuple(self.dense), tuple(self.sparse), lists, keyed)

    @property
    def sparse(self) -> dict[str, Categorical]:
        """The columns that are sparse features."""
        return {**self.categorical, **self.lists}

    @property
    def sorted(self) -> bool:
        """Whether rows must be in the order of time."""
        return bool(self.time) and self.split.by == "rows"

    def split_again(self, shares: tuple[float, ...]) -> Schema:
        """The same with splits by the order of rows: if there is only one, rows that were to be split by time need not
        be in its order.
        """
        by_time, rule = self.split.by == "time", SplitRule(shares=shares)
        if not by_time:
            return replace(self, split=rule)
        return replace(self, split=replace(rule, type=self.split.type), time=self.time if len(shares) > 1 else "")

    def moment(self, time: float) -> str:
        """A time as people write it."""
        date = self.split.type == TIMESTAMP and np.isfinite(time)
        return str(np.datetime64(int(time), "us")) if date else f"{time:g}"

    def kinds(self) -> dict[str, str]:
        """How each column that is used is read; UserError if two uses disagree."""
        wanted = [(name, NUMBER) for name in self.dense]
        wanted += [(name, column.type) for name, column in self.categorical.items()]
        wanted += [(name, LIST) for name in self.lists]
        wanted += [(column.weights, WEIGHTS) for column in self.lists.values() if column.weights]
        if self.label:
            wanted.append((self.label.column, self.label.kind))
        if self.split.by == "column":
            wanted.append((self.split.column, self.split.type))
        if self.time and (self.split.by == "time" or self.sorted):
            wanted.append((self.time, TIMESTAMP if self.split.type == TIMESTAMP else NUMBER))
        kinds: dict[str, str] = {}
        for name, kind in wanted:
            before = kinds.setdefault(name, kind)
            if before != kind:
                if {before, kind} != {NUMBER, INTEGER}:
                    raise UserError(f"{self.path}: column {name!r} is used as {before} and as {kind}; use it as one")
                kinds[name] = INTEGER
        return kinds

    def with_keys(self, names: Collection[str]) -> Schema:
        """The same with keys of the categorical columns among ``names``, of which nothing is counted."""
        categorical = {
            name: Categorical(column.type, hash=KEYS) if name in names else column
            for name, column in self.categorical.items()
        }
        return replace(self, categorical=categorical)

    def columns_identity(self) -> dict[str, Any]:
        """What a vocabulary that is used again depends on, as JSON has it."""
        return {
            "dense": [[name, column.transform] for name, column in self.dense.items()],
            "categorical": [[name, column.type, column.hash] for name, column in self.categorical.items()],
        } | ({"lists": [[name, column.type, column.hash] for name, column in self.lists.items()]} if self.lists else {})

    def identity(self) -> dict[str, Any]:
        """Everything the output depends on, as JSON has it; no path."""
        found: dict[str, Any] = json.loads(json.dumps(asdict(self), default=str))
        for column in found["lists"].values():
            if not column["weights"]:  # as by versions that knew none
                del column["weights"]
        if not self.lists:
            del found["lists"]
        if self.quoting == LINE:
            del found["quoting"]
        return {f"schema.{name}": value for name, value in found.items() if name != "path"}


def quoted(text: str) -> str:
    """A TOML string."""
    return json.dumps(text, ensure_ascii=False)


def some(names: Iterable[str], most: int = 12) -> str:
    """The first few of many names, for messages."""
    names = list(names)
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
