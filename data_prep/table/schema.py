"""The schema of a table: which columns are label, features, time and split; and ``schema.toml``, read and checked: each
error names file, key and remedy.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, date, datetime
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from data_prep.shards.provenance import KEYS
from ssmpi.data.features import POOLINGS, Features, ListOptions
from ssmpi.data.schema import SPLITS
from ssmpi.runtime.documents import parse_toml
from ssmpi.runtime.errors import UserError

NUMBER, INTEGER, STRING, TIMESTAMP = "number", "integer", "string", "timestamp"
LIST, WEIGHTS = "list", "weights"
BUCKET = "bucket"  # a number whose bucket is the token
TOKEN_TYPES, LISTED_TYPES = (STRING, INTEGER, BUCKET), (STRING, INTEGER)
TRANSFORMS = ("none", "log1p", "standardize")
REFUSE = "refuse"
BRACKETS = "[]"  # in place of a separator: lists in brackets
MOST_RANGE = 2**31 - 3
MOST_LISTED = 100_000  # values of a list
LINE, MULTILINE, UNQUOTED = QUOTINGS = ("line", "multiline", "none")  # where quoted values end; none are quoted
RULE = re.compile(r"\s*(\S+)\s*(>=|<=|==|!=|>|<)\s*(.+?)\s*")
RUN_SECTIONS = {"data", "run", "model", "embedding", "sync", "topology"}  # of a run file, and not of a schema
SPLIT_KEYS = {
    "rows": {"by", "shares"},
    "random": {"by", "shares"},
    "column": {"by", "column", *SPLITS},
    "file": {"by", *SPLITS},
    "time": {"by", "train_until", "validation_until"},
}


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
    """A sparse feature; ``hash`` 0: ids from a vocabulary; ``KEYS``: hashes of tokens; else tokens modulo it. The token
    of a number of type ``BUCKET`` is that of its bucket (``row_builder.buckets``).
    """

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
        wanted += [
            (name, NUMBER if column.type == BUCKET else column.type) for name, column in self.categorical.items()
        ]
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


def read_schema(path: Path) -> Schema:
    """Read ``schema.toml``; UserError names file, key and remedy."""
    try:
        body = parse_toml(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{path}: not a TOML file: {error}") from error
    known = {"label", "time", "group", "table", "dense", "categorical", "list", "split"}
    if RUN_SECTIONS & set(body) and not known & set(body) - {"dense"}:
        raise UserError(f"{path}: is a run file, which 'ssmpi train' reads; --schema takes a file that names columns")
    _known(path, "", body, known)
    table = body.get("table", {})
    _known(path, "table", table, {"separator", "columns", "missing", "quoting"})
    schema = Schema(
        path=path,
        dense={name: _dense(path, name, value) for name, value in _section(path, body, "dense").items()},
        categorical={n: _categorical(path, n, value) for n, value in _section(path, body, "categorical").items()},
        lists={name: _list(path, name, value) for name, value in _section(path, body, "list").items()},
        label=_label(path, body["label"]) if "label" in body else None,
        time=_string(path, "time", body.get("time", "")),
        group=_string(path, "group", body.get("group", "")),
        split=_split(path, body.get("split", {})),
        separator=_string(path, "table.separator", table.get("separator", ",")),
        columns=tuple(_strings(path, "table.columns", table.get("columns", []))),
        missing=tuple(_strings(path, "table.missing", table.get("missing", [""]))),
        quoting=_string(path, "table.quoting", table.get("quoting", QUOTINGS[0])),
    )
    _check(schema)
    return schema


def _check(schema: Schema) -> None:
    path = schema.path
    if not schema.sparse:
        raise UserError(f"{path}: no [categorical] or [list] column, so there is nothing to embed; name at least one")
    kinds = {"dense": schema.dense, "categorical": schema.categorical, "list": schema.lists}
    for (one, some_names), (other, names) in combinations(kinds.items(), 2):
        if both := sorted(set(some_names) & set(names)):
            raise UserError(f"{path}: {both[0]!r} is in [{one}] and in [{other}]; leave one out")
    if schema.label and schema.label.column in (*schema.dense, *schema.sparse):
        raise UserError(f"{path}: the label {schema.label.column!r} is a feature too; leave it out of the features")
    if len(schema.separator.encode()) != 1:
        raise UserError(f'{path}: table.separator {schema.separator!r} is not one character; write "," or "\\t"')
    if schema.quoting not in QUOTINGS:
        raise UserError(f"{path}: table.quoting is {schema.quoting!r}; write one of {', '.join(QUOTINGS)}")
    if len(set(schema.columns)) < len(schema.columns):
        raise UserError(f"{path}: table.columns names a column twice")
    if schema.split.by == "time" and not schema.time:
        raise UserError(f'{path}: split.by = "time" needs a column of time; write time = "..." at the top')
    if schema.group and schema.group not in schema.categorical:
        raise UserError(f"{path}: group {schema.group!r} is not in [categorical]: {some(schema.categorical)}")
    schema.kinds()


def _section(path: Path, body: Mapping[str, Any], name: str) -> dict[str, Any]:
    found: dict[str, Any] = body.get(name, {})
    if not isinstance(found, dict):
        raise UserError(f"{path}: {name} is {found!r}, not a table of settings")
    return found


def _known(path: Path, place: str, found: object, known: set[str]) -> None:
    for name in _section(path, {place: found}, place):
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"known are {some(sorted(known))}"
            raise UserError(f"{path}: unknown setting {place + '.' if place else ''}{name}; {hint}")


def _string(path: Path, place: str, value: object) -> str:
    if not isinstance(value, str):
        raise UserError(f"{path}: {place} is {value!r}, not a string")
    return value


def _strings(path: Path, place: str, value: object) -> list[str]:
    if not isinstance(value, list):
        raise UserError(f"{path}: {place} is {value!r}, not a list of strings")
    return [_string(path, place, one) for one in value]


def _label(path: Path, value: object) -> Label:
    text = _string(path, "label", value)
    if not (rule := RULE.fullmatch(text)):
        if not text:
            raise UserError(f"{path}: label is empty; leave it out if there are no labels")
        return Label(text)
    column, operator, literal = rule.groups()
    quoted = re.fullmatch(r"'(.*)'|\"(.*)\"", literal)
    if quoted and operator in ("==", "!="):
        return Label(column, operator, quoted[1] or quoted[2] or "")
    try:
        return Label(column, operator, float(literal))
    except ValueError:
        raise UserError(
            f"{path}: label {text!r}: {literal} is no number; write for example rating >= 4, or kind == 'click'"
        ) from None


def _dense(path: Path, name: str, value: object) -> Dense:
    place = f"dense.{name}"
    settings = {"transform": value} if isinstance(value, str) else value
    _known(path, place, settings, {"transform", "missing"})
    assert isinstance(settings, dict)
    transform, missing = settings.get("transform", "none"), settings.get("missing")
    if transform not in TRANSFORMS:
        raise UserError(f"{path}: {place}: transform is {transform!r}, not one of {', '.join(TRANSFORMS)}")
    if isinstance(missing, bool) or not (missing in (None, REFUSE) or isinstance(missing, int | float)):
        raise UserError(f"{path}: {place}: missing is {missing!r}; write a number, or {REFUSE!r}")
    return Dense(transform, missing)


def _categorical(path: Path, name: str, value: object) -> Categorical:
    place = f"categorical.{name}"
    settings = {"type": value} if isinstance(value, str) else value
    _known(path, place, settings, {"type", "min_count", "hash"})
    assert isinstance(settings, dict)
    keyed = settings.get("hash") is True
    kind, least, slots = _tokens(path, place, settings | {"hash": 1} if keyed else settings)
    return Categorical(kind, least, KEYS if keyed else slots)


def _tokens(path: Path, place: str, settings: dict[str, Any]) -> tuple[str, int, int]:
    """Type, minimum count and range of hashes of a sparse feature's tokens."""
    kind, listed = settings.get("type", STRING), not place.startswith("categorical")
    types = LISTED_TYPES if listed else TOKEN_TYPES
    if kind not in types:
        raise UserError(f"{path}: {place}: type is {kind!r}, not one of {', '.join(types)}")
    for key, other in (("min_count", ""), ("hash", ", or true for 64-bit keys" * (not listed))):
        number = settings.get(key, 1)
        if type(number) is not int or not 1 <= number <= MOST_RANGE:
            raise UserError(f"{path}: {place}: {key} is {number!r}, not a whole number from 1 to {MOST_RANGE:,}{other}")
    if "min_count" in settings and "hash" in settings:
        raise UserError(f"{path}: {place}: hashed tokens are not counted; leave out min_count or hash")
    return kind, settings.get("min_count", 0), settings.get("hash", 0)


def _list(path: Path, name: str, value: object) -> ListColumn:
    place = f"list.{name}"
    known = {"type", "min_count", "hash", "longest", "separator", "truncate", "pooling", "weights"}
    _known(path, place, value, known)
    assert isinstance(value, dict)
    longest, truncate, pooling = value.get("longest"), value.get("truncate", False), value.get("pooling", POOLINGS[0])
    if type(longest) is not int or not 1 <= longest <= MOST_LISTED:
        found = "is missing" if longest is None else f"is {longest!r}"
        raise UserError(
            f"{path}: {place}: longest {found}; write the most values that a row may have, 1 to {MOST_LISTED:,}"
        )
    separator = _string(path, f"{place}.separator", value.get("separator", "|"))
    if not separator or "\n" in separator:
        raise UserError(f'{path}: {place}: separator {separator!r} is not text within a line; write for example "|"')
    if type(truncate) is not bool:
        raise UserError(f"{path}: {place}: truncate is {truncate!r}, not true or false")
    if pooling not in POOLINGS:
        raise UserError(f"{path}: {place}: pooling is {pooling!r}, not {' or '.join(map(repr, POOLINGS))}")
    weights = _string(path, f"{place}.weights", value.get("weights", ""))
    if weights and pooling == "mean":
        raise UserError(f'{path}: {place}: a list with weights is pooled by "sum"; leave out pooling, or weights')
    kind, least, slots = _tokens(path, place, value)
    return ListColumn(
        type=kind, min_count=least, hash=slots, longest=longest, separator=separator, truncate=truncate,
        pooling=pooling, weights=weights,
    )  # fmt: skip


def _split(path: Path, found: object) -> SplitRule:
    _known(path, "split", found, set().union(*SPLIT_KEYS.values()))
    assert isinstance(found, dict)
    by = found.get("by", "rows")
    if by not in SPLIT_KEYS:
        raise UserError(f"{path}: split.by is {by!r}; write one of {', '.join(SPLIT_KEYS)}")
    if wrong := sorted(set(found) - SPLIT_KEYS[by]):
        raise UserError(f"{path}: split.{wrong[0]} does not go with split.by = {by!r}; leave it out")
    if by in ("column", "file"):
        return _by_value(path, found, by)
    if by == "time":
        return _by_time(path, found)
    shares = found.get("shares", [0.8, 0.1, 0.1])
    good = isinstance(shares, list) and 1 <= len(shares) <= len(SPLITS) and all(type(x) in (int, float) for x in shares)
    if not good or min(shares) < 0 or abs(sum(shares) - 1) > 1e-9:
        raise UserError(f"{path}: split.shares is {shares!r}; write shares of train, validation, test that add up to 1")
    return SplitRule(by, tuple(float(x) for x in shares))


def _by_value(path: Path, found: dict[str, Any], by: str) -> SplitRule:
    column = _string(path, "split.column", found.get("column", ""))
    values = {name: found[name] if isinstance(found[name], list) else [found[name]] for name in SPLITS if name in found}
    every = [value for some in values.values() for value in some]
    if "train" not in values or not (column or by == "file"):
        what = 'column = "..." and the values' if by == "column" else "the names or patterns of the files"
        raise UserError(f"{path}: split by {by}: write {what} of train, validation and test")
    if by == "file" and not all(type(value) is str and value for value in every):
        raise UserError(f"{path}: split: {every} are not all names or patterns of files")
    if {type(value) for value in every} not in ({str}, {int}):
        raise UserError(f"{path}: split: the values are {every}; write strings alone or whole numbers alone")
    if len(set(every)) < len(every):
        raise UserError(f"{path}: split: a value is in two splits")
    numbers = {str(value): SPLITS.index(name) for name, some in values.items() for value in some}
    return SplitRule(by, column=column, values=numbers, type=STRING if type(every[0]) is str else INTEGER)


def _by_time(path: Path, found: dict[str, Any]) -> SplitRule:
    ends = [found[name] for name in ("train_until", "validation_until") if name in found]
    if "train_until" not in found:
        raise UserError(f"{path}: split by time: write train_until = the first time that is not trained on")
    if all(isinstance(end, date) for end in ends):
        until = tuple(_microseconds(end) for end in ends)
        kind = TIMESTAMP
    elif all(type(end) in (int, float) for end in ends):
        until, kind = tuple(float(end) for end in ends), NUMBER
    else:
        raise UserError(f"{path}: split by time: {ends} are neither all numbers nor all dates")
    if list(until) != sorted(until):
        raise UserError(f"{path}: split by time: validation_until is before train_until")
    return SplitRule("time", until=until, type=kind)


def _microseconds(end: date) -> float:
    moment = end if isinstance(end, datetime) else datetime(end.year, end.month, end.day)
    return moment.replace(tzinfo=moment.tzinfo or UTC).timestamp() * 1e6
