"""The meanings of settings: the strings below the fields of their classes, read from the source."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import textwrap
import types
import typing
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, NamedTuple

from ssmpi.runtime.settings import keys_of

NO_VALUE = REQUIRED, UNSET = "required", "unset"  # in place of a default


class Section(NamedTuple):
    """A section of a file of settings: its ``name``, empty for the file's own keys, what it is for, its settings."""

    name: str
    purpose: str
    settings: tuple[Setting, ...]


class Setting(NamedTuple):
    """A setting by its full ``name``, ``section.key``."""

    name: str
    default: str  # as TOML, or one of NO_VALUE
    meaning: str


def sections(cls: Any, name: str = "") -> Iterator[Section]:
    """The section of a settings class, and those in it; ``name`` is that of the section."""
    hints, meanings, inner, own = typing.get_type_hints(cls), _meanings(cls), [], []
    prefix = f"{name}." if name else ""
    for field in keys_of(cls):
        if nested := _section(hints[field.name]):
            inner.append((nested, f"{prefix}{field.name}"))
        else:
            own.append(Setting(f"{prefix}{field.name}", _default(field), meanings.get(field.name, "")))
    if own:
        yield Section(name, inspect.cleandoc(cls.__doc__ or ""), tuple(own))
    for nested, place in inner:
        yield from sections(nested, place)


def _section(hint: Any) -> Any:
    """The settings class of a field that is a section, which may be optional; else None."""
    members = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    return next((member for member in members if dataclasses.is_dataclass(member)), None)


def _meanings(cls: type) -> dict[str, str]:
    """The strings below the fields of a class and of those that it derives from."""
    found = {}
    for base in filter(dataclasses.is_dataclass, reversed(cls.__mro__)):
        hints = typing.get_type_hints(base)
        if all(_section(hints[name]) for name in inspect.get_annotations(base)):
            continue  # nothing but sections: such a class may have been made without a source
        (definition,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        assert isinstance(definition, ast.ClassDef)
        for field, below in pairwise(definition.body):
            if isinstance(field, ast.AnnAssign) and isinstance(below, ast.Expr):
                found[ast.unparse(field.target)] = inspect.cleandoc(ast.literal_eval(below.value))
    return {name: " ".join(text.split()) for name, text in found.items()}


def _default(field: dataclasses.Field[Any]) -> str:
    if field.default is not dataclasses.MISSING:
        return UNSET if field.default is None else _toml(field.default)
    return REQUIRED if field.default_factory is dataclasses.MISSING else UNSET


def _toml(value: object) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, str):
        return f'"{value}"'
    return str(value).lower()
