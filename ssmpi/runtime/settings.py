"""Turns TOML plus ``section.key=value`` overrides into frozen dataclasses, strictly, and back into TOML.

Each component declares its own settings beside the code that uses them; ``config`` composes them. Nothing here knows
what any setting means.
"""

from __future__ import annotations

import copy
import dataclasses
import difflib
import json
import math
import re
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import tomli_w

from ssmpi.runtime.documents import parse_toml
from ssmpi.runtime.errors import SettingsError, json_problem

if typing.TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T")

SECONDS = 1e9  # thirty years: no timer takes more
COUNT = 2**31 - 1  # what fits into arrays and messages
EXAMPLES = 2**62
FLOAT32 = 1e38  # a larger number would be infinite there
CLOSE = 0.6  # difflib's measure of likeness, from which on a name is suggested

NO_TRANSPORT = "leave it out, or set run.shared_memory = false for messages even within a host"
DERIVED = types.MappingProxyType({"derived": True})  # metadata of a field that follows from other settings


class UnsetError(SettingsError):
    """A setting that has no default is not set."""


def load(
    cls: type[T],
    path: Path,
    overrides: Sequence[str] = (),
    kind: str = "run file",
    ignored: list[str] | None = None,
) -> T:
    """Read a file, apply overrides in order and build ``cls``; ``kind`` names the file in messages. SettingsError names
    the overrides at fault, or else the file. A list ``ignored`` receives what removed settings in the file ask for,
    which else is an error.
    """
    values = read(path, kind)
    if ignored is not None:
        ignored += drop_removed(cls, values)
    whole = overridden(values, overrides)
    try:
        return build(cls, whole)
    except SettingsError as error:
        blamed = [override for override in overrides if not _fails_without(override, cls, values, overrides, error)]
        where = f"override{'s' * (len(blamed) > 1)} {', '.join(map(repr, blamed))}" if blamed else str(path)
        raise type(error)(f"{where}: {error}") from None


def overridden(values: Mapping[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """A copy of ``values`` with overrides applied in order."""
    found = copy.deepcopy(dict(values))
    for override in overrides:
        apply_override(found, override)
    return found


def _fails_without(
    override: str, cls: type, values: Mapping[str, Any], overrides: Sequence[str], error: SettingsError
) -> bool:
    """Whether the same error would be there without this override."""
    try:
        build(cls, overridden(values, [other for other in overrides if other != override]))
    except SettingsError as other:
        return str(other) == str(error)
    return False


def read(path: Path, kind: str = "run file") -> dict[str, Any]:
    """The contents of a TOML file; SettingsError if it cannot be read."""
    try:
        return parse_toml(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        if kind == "run file" and "=" in str(path):
            raise SettingsError(
                f"no run file given: '{path}' is a setting, and the run file comes before it: RUN.toml {path}"
            ) from None
        raise SettingsError(f"{path}: no such {kind}") from None
    except UnicodeDecodeError as error:
        raise SettingsError(f"{path}: {json_problem(error)}: save it as UTF-8") from error
    except IsADirectoryError:
        raise SettingsError(f"{path}: a folder, not a {kind}") from None
    except (OSError, ValueError) as error:
        raise SettingsError(f"{path}: not a readable TOML file: {error}") from error


def apply_override(values: dict[str, Any], override: str) -> None:
    """Set ``section.key=value`` in ``values``; the value is TOML, and a bare word is taken as a string."""
    name, equals, text = override.partition("=")
    keys = name.strip().split(".")
    if not equals or not all(keys):
        more = "; there can be one run file only" if override.endswith(".toml") else ""
        raise SettingsError(f"override '{override}' is not of the form section.key=value{more}")
    try:
        value = parse_toml(f"value = {text}")["value"]
    except ValueError:
        value = text.strip()
    for key in keys[:-1]:
        values = values.setdefault(key, {})
        if not isinstance(values, dict):
            raise SettingsError(f"override '{override}': '{key}' is a value, not a section")
    values[keys[-1]] = value


def build(cls: type[T], values: Mapping[str, Any], where: str = "") -> T:
    """Build the dataclass ``cls`` from nested mappings; SettingsError, with a remedy, for unknown keys and
    wrong types.
    """
    hints = typing.get_type_hints(cls)
    fields = {f.name: f for f in keys_of(cls)}
    values = _without_removed(getattr(cls, "REMOVED", {}), values, where)
    for key in values:
        if key not in fields:
            kind = "section" if isinstance(values[key], dict) else "key"
            raise SettingsError(f"unknown {kind} '{where}{key}'{suggestion(key, fields)}")
    arguments = {key: _convert(hints[key], value, f"{where}{key}") for key, value in values.items()}
    missing = [f.name for f in fields.values() if f.name not in arguments and _required(f)]
    if missing:
        raise UnsetError(f"{_unset(hints[missing[0]], where, missing[0])} is required and not set")
    try:
        return cls(**arguments)
    except SettingsError as error:
        text = str(error)
        raise SettingsError(text if not where or text.startswith(where) else f"{where}{text}") from None


def keys_of(cls: Any) -> list[dataclasses.Field[Any]]:
    """The fields of a settings class that a file may set: all but those marked as ``DERIVED``."""
    return [f for f in dataclasses.fields(cls) if not f.metadata.get("derived")]


def _without_removed(
    removed: Mapping[str, tuple[object, str]], values: Mapping[str, Any], where: str
) -> dict[str, Any]:
    """``values`` without the keys that earlier versions had and wrote into every run folder; ``removed`` has their
    default, or all values that ask for nothing now, and what to do instead, if there is something. SettingsError for
    another value: what it asked for is gone.
    """
    for key in _asked(removed, values):
        default, instead = removed[key]
        remedy = instead or f"leave it out; a run behaves as with its default of {json.dumps(default)}"
        raise SettingsError(f"'{where}{key}' was removed: {remedy}")
    return {key: value for key, value in values.items() if key not in removed}


def drop_removed(cls: type, values: dict[str, Any], where: str = "") -> list[str]:
    """Delete from ``values``, sections included, the keys that ``cls`` had in earlier versions; returns what those of
    them ask for whose value is not harmless.
    """
    removed = getattr(cls, "REMOVED", {})
    found = [f"{where}{key} = {values[key]!r}" for key in _asked(removed, values)]
    for key in removed.keys() & values.keys():
        del values[key]
    for name, hint in typing.get_type_hints(cls).items():
        if dataclasses.is_dataclass(hint) and isinstance(values.get(name), dict):
            found += drop_removed(typing.cast(type, hint), values[name], f"{where}{name}.")
    return found


def _asked(removed: Mapping[str, tuple[object, str]], values: Mapping[str, Any]) -> list[str]:
    """The removed keys whose values ask for something."""
    harmless = {key: default if isinstance(default, tuple) else (default,) for key, (default, _) in removed.items()}
    return [key for key, value in values.items() if key in removed and value not in harmless[key]]


def dump(settings: DataclassInstance) -> str:
    """Write a settings dataclass as TOML that ``load`` reads back to an equal value; None and empty mappings are
    omitted.
    """
    return tomli_w.dumps(typing.cast(Mapping[str, object], _plain(settings)))


def flat(nested: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested sections as ``section.key`` to value."""
    found: dict[str, Any] = {}
    for key, value in nested.items():
        found |= flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return found


def nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """``section.key`` to value, as a run file has them."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        *sections, key = name.split(".")
        place = found
        for section in sections:
            place = place.setdefault(section, {})
        place[key] = value
    return found


def require(condition: bool, message: str) -> None:
    """Raise SettingsError unless ``condition``; for the checks in a settings class."""
    if not condition:
        raise SettingsError(message)


def within(name: str, value: float, least: float, most: float) -> None:
    """Raise SettingsError unless ``value`` is a number from ``least`` to ``most``."""
    require(value >= least, f"{name} must be at least {_shown(least)}, got {_shown(value)}")
    require(value <= most, f"{name} must be at most {_shown(most)}, got {_shown(value)}")


def printable(name: str, text: str | None) -> None:
    """Raise SettingsError if a text has line breaks or other control characters, which batch files and logs repeat."""
    found = re.search(r"[\x00-\x1f\x7f-\x9f]", text or "")
    require(not found, f"{name} = {text!r} has a line break or another control character: remove it")


def positive(name: str, value: float, most: float) -> None:
    """Raise SettingsError unless ``value`` is a number above 0, and at most ``most``."""
    require(0 < value <= most, f"{name} must be positive and at most {_shown(most)}, got {_shown(value)}")


def suggestion(key: str, names: Iterable[str]) -> str:
    """A hint for a misspelt ``key``: the closest of ``names``, several if they are as close, or else all of them."""
    near = {name: difflib.SequenceMatcher(None, name, key).ratio() for name in names}
    most = max(near.values(), default=0.0)
    if most < CLOSE:
        return f"; there are {', '.join(near)}"
    return f"; did you mean {' or '.join(repr(name) for name in near if near[name] == most)}?"


def _shown(number: float) -> str:
    return f"{number:,}" if isinstance(number, int) else f"{number:g}"


def _plain(value: object) -> object:
    if dataclasses.is_dataclass(value):
        pairs = {f.name: getattr(value, f.name) for f in keys_of(value)}
        return {name: _plain(item) for name, item in pairs.items() if item not in (None, {})}
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, tuple) else value


def _required(f: dataclasses.Field[Any]) -> bool:
    return f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING


def _unset(hint: object, where: str, name: str) -> str:
    """What must be set: a key, or a section with its required keys."""
    if not dataclasses.is_dataclass(hint):
        return f"'{where}{name}'"
    return f"section [{where}{name}] with {' and '.join(f.name for f in dataclasses.fields(hint) if _required(f))}"


def _convert(hint: object, value: object, name: str) -> object:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return value
    if dataclasses.is_dataclass(hint):
        if not isinstance(value, Mapping):
            raise SettingsError(f"'{name}' is a section, got {value!r}: write [{name}], or {name}.KEY=VALUE")
        return build(typing.cast(type, hint), value, f"{name}.")
    if origin is typing.Literal:
        if value not in arguments:
            close = difflib.get_close_matches(str(value), [str(a) for a in arguments], n=1)
            hint_text = f"; did you mean '{close[0]}'?" if close else ""
            raise SettingsError(f"{name} = {value!r} is not one of {', '.join(map(str, arguments))}{hint_text}")
        return value
    if origin in (types.UnionType, typing.Union):
        return _convert(next(a for a in arguments if a is not type(None)), value, name)
    if origin is dict:
        if not isinstance(value, Mapping):
            what = ("section", "") if arguments[1] is Any else ("section of sections", ".NAME")
            raise SettingsError(f"'{name}' is a {what[0]}, got {value!r}: write [{name}{what[1]}]")
        return {key: _convert(arguments[1], item, f"{name}.{key}") for key, item in value.items()}
    if origin is tuple:
        if not isinstance(value, (list, tuple)):
            raise SettingsError(f"{name} = {value!r} is not a list")
        return tuple(_convert(arguments[0], item, f"{name}[{i}]") for i, item in enumerate(value))
    if hint is float and type(value) is int and abs(value) <= FLOAT32:
        return float(value)
    if type(value) is not hint:
        raise SettingsError(f"{name} = {value!r} is not {_kind(hint)}")
    require(not isinstance(value, float) or math.isfinite(value), f"{name} = {value!r} is not a finite number")
    return value


def _kind(hint: object) -> str:
    kinds: dict[object, str] = {
        int: "a whole number",
        float: "a number",
        str: "a string",
        bool: "true or false",
        dict: "a section",
    }
    return kinds.get(hint, str(hint))
