"""Command line options from the fields of a class: ``ssmpi.bench.options`` says each once.

tyro and simple-parsing do the same, but take a list as separate words and no ``key=value`` settings among them:
``--trainers 1,4,20``, as our pages and scripts have it, is an error there.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from dataclasses import Field, fields
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Any, TypeVar, get_args, get_origin, get_type_hints

from ssmpi.runtime.errors import SettingsError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    T = TypeVar("T", bound=DataclassInstance)
METAVARS = {int: "N", float: "N", Path: "PATH"}
NUMBERS = {int: "integers", float: "numbers"}


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
