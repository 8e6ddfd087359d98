"""The schema of a table: which columns are label, features, time and split, read from TOML and checked."""

from __future__ import annotations

import difflib
import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

from ssmpi.core.errors import UserError
from ssmpi.data.features import Features
from ssmpi.data.schema import SPLITS

NUMBER, INTEGER, STRING, TIMESTAMP = "number", "integer", "string", "timestamp"
TRANSFORMS = ("none", "log1p", "standardize")
RULE = re.compile(r"\s*(\S+)\s*(>=|<=|==|!=|>|<)\s*(.+?)\s*")
REFUSE = "refuse"
MOST_RANGE = 2**31 - 3
SPLIT_KEYS = {
    "rows": {"by", "shares"},
    "random": {"by", "shares"},
    "column": {"by", "column", *SPLITS},
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
    """A sparse feature; ``hash`` 0: ids from a vocabulary, else tokens modulo it."""

    type: str = STRING
    min_count: int = 0  # 0: that of the command line
    hash: int = 0


@dataclass(frozen=True)
class SplitRule:
    """Which split a row is in: by its number, at random, by ``column`` (``values``: the splits of its values) or by
    time (``until``: the ends of train and validation; numbers or microseconds of UTC)."""

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
    label: Label | None = None
    time: str = ""
    group: str = ""
    split: SplitRule = SplitRule()
    separator: str = ","
    columns: tuple[str, ...] = ()
    missing: tuple[str, ...] = ("",)

    @property
    def features(self) -> Features:
        """The features, in the order of the schema."""
        return Features(tuple(self.dense), tuple(self.categorical))

    @property
    def sorted(self) -> bool:
        """Whether rows must be in the order of time."""
        return bool(self.time) and self.split.by == "rows"

    def kinds(self) -> dict[str, str]:
        """How each column that is used is read; UserError if two uses disagree."""
        wanted = [(name, NUMBER) for name in self.dense]
        wanted += [(name, column.type) for name, column in self.categorical.items()]
        if self.label:
            wanted.append((self.label.column, self.label.kind))
        if self.split.by == "column":
            wanted.append((self.split.column, self.split.type))
        if self.time and (self.split.by == "time" or self.sorted):
            wanted.append((self.time, self.split.type if self.split.by == "time" else NUMBER))
        kinds: dict[str, str] = {}
        for name, kind in wanted:
            before = kinds.setdefault(name, kind)
            if before != kind:
                if {before, kind} != {NUMBER, INTEGER}:
                    raise UserError(f"{self.path}: column {name!r} is used as {before} and as {kind}; use it as one")
                kinds[name] = INTEGER
        return kinds

    def columns_identity(self) -> dict[str, Any]:
        """What a vocabulary that is used again depends on, as JSON has it."""
        return {
            "dense": [[name, column.transform] for name, column in self.dense.items()],
            "categorical": [[name, column.type, column.hash] for name, column in self.categorical.items()],
        }

    def identity(self) -> dict[str, Any]:
        """Everything the output depends on, as JSON has it; no path."""
        found: dict[str, Any] = json.loads(json.dumps(asdict(self), default=str))
        return {f"schema.{name}": value for name, value in found.items() if name != "path"}


def read_schema(path: Path) -> Schema:
    """Read ``schema.toml``; UserError names file, key and remedy."""
    try:
        body = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: not a TOML file: {error}") from error
    _known(path, "", body, {"label", "time", "group", "table", "dense", "categorical", "list", "split"})
    if body.get("list"):
        raise UserError(
            f"{path}: list.{next(iter(body['list']))}: lists of ids cannot be prepared yet; leave the column out"
        )
    table = body.get("table", {})
    _known(path, "table", table, {"separator", "columns", "missing"})
    schema = Schema(
        path=path,
        dense={name: _dense(path, name, value) for name, value in body.get("dense", {}).items()},
        categorical={name: _categorical(path, name, value) for name, value in body.get("categorical", {}).items()},
        label=_label(path, body["label"]) if "label" in body else None,
        time=_string(path, "time", body.get("time", "")),
        group=_string(path, "group", body.get("group", "")),
        split=_split(path, body.get("split", {})),
        separator=_string(path, "table.separator", table.get("separator", ",")),
        columns=tuple(_strings(path, "table.columns", table.get("columns", []))),
        missing=tuple(_strings(path, "table.missing", table.get("missing", [""]))),
    )
    _check(schema)
    return schema


def _check(schema: Schema) -> None:
    path = schema.path
    if not schema.categorical:
        raise UserError(f"{path}: no [categorical] column, and so nothing to embed; name at least one")
    if both := sorted(set(schema.dense) & set(schema.categorical)):
        raise UserError(f"{path}: {both[0]!r} is in [dense] and in [categorical]; leave one out")
    if schema.label and schema.label.column in (*schema.dense, *schema.categorical):
        raise UserError(f"{path}: the label {schema.label.column!r} is a feature too; leave it out of the features")
    if len(schema.separator.encode()) != 1:
        raise UserError(f'{path}: table.separator {schema.separator!r} is not one character; write "," or "\\t"')
    if len(set(schema.columns)) < len(schema.columns):
        raise UserError(f"{path}: table.columns names a column twice")
    if schema.split.by == "time" and not schema.time:
        raise UserError(f'{path}: split.by = "time" needs a column of time; write time = "..." at the top')
    if schema.group and schema.group not in schema.categorical:
        raise UserError(f"{path}: group {schema.group!r} is not in [categorical]: {_some(schema.categorical)}")
    schema.kinds()


def _known(path: Path, place: str, found: object, known: set[str]) -> None:
    if not isinstance(found, dict):
        raise UserError(f"{path}: {place} is {found!r}, not a table of settings")
    for name in found:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"known are {_some(sorted(known))}"
            raise UserError(f"{path}: unknown setting {place + '.' if place else ''}{name}; {hint}")


def _some(names: Sequence[str] | Mapping[str, Any]) -> str:
    names = list(names)
    return ", ".join(names[:12]) + (f" and {len(names) - 12} more" if len(names) > 12 else "")


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
    kind = settings.get("type", STRING)
    if kind not in (STRING, INTEGER):
        raise UserError(f"{path}: {place}: type {kind!r} is neither {STRING!r} nor {INTEGER!r}")
    for key in ("min_count", "hash"):
        number = settings.get(key, 1)
        if type(number) is not int or not 1 <= number <= MOST_RANGE:
            raise UserError(f"{path}: {place}: {key} is {number!r}, not a whole number from 1 to {MOST_RANGE:,}")
    if "min_count" in settings and "hash" in settings:
        raise UserError(f"{path}: {place}: hashed tokens are not counted; leave out min_count or hash")
    return Categorical(kind, settings.get("min_count", 0), settings.get("hash", 0))


def _split(path: Path, found: object) -> SplitRule:
    _known(path, "split", found, set().union(*SPLIT_KEYS.values()))
    assert isinstance(found, dict)
    by = found.get("by", "rows")
    if by not in SPLIT_KEYS:
        raise UserError(f"{path}: split.by is {by!r}; write one of {', '.join(SPLIT_KEYS)}")
    if wrong := sorted(set(found) - SPLIT_KEYS[by]):
        raise UserError(f"{path}: split.{wrong[0]} does not go with split.by = {by!r}; leave it out")
    if by == "column":
        return _by_value(path, found)
    if by == "time":
        return _by_time(path, found)
    shares = found.get("shares", [0.8, 0.1, 0.1])
    good = isinstance(shares, list) and 1 <= len(shares) <= len(SPLITS) and all(type(x) in (int, float) for x in shares)
    if not good or min(shares) < 0 or abs(sum(shares) - 1) > 1e-9:
        raise UserError(f"{path}: split.shares is {shares!r}; write shares of train, validation, test that add up to 1")
    return SplitRule(by, tuple(float(x) for x in shares))


def _by_value(path: Path, found: dict[str, Any]) -> SplitRule:
    column = _string(path, "split.column", found.get("column", ""))
    values = {name: found[name] if isinstance(found[name], list) else [found[name]] for name in SPLITS if name in found}
    every = [value for some in values.values() for value in some]
    if not column or "train" not in values:
        raise UserError(f'{path}: split by column: write column = "..." and the values of train, validation and test')
    if {type(value) for value in every} not in ({str}, {int}):
        raise UserError(f"{path}: split: the values are {every}; write strings alone or whole numbers alone")
    if len(set(every)) < len(every):
        raise UserError(f"{path}: split: a value is in two splits")
    numbers = {str(value): SPLITS.index(name) for name, some in values.items() for value in some}
    return SplitRule("column", column=column, values=numbers, type=STRING if type(every[0]) is str else INTEGER)


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
