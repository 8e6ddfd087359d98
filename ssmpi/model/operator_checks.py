"""Checks of a network's operators, with messages."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from ssmpi.runtime import settings
from ssmpi.runtime.errors import SettingsError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


def check_fields(place: str, operator: DataclassInstance) -> None:
    """SettingsError unless the operator can be rebuilt from its fields, on other ranks and from checkpoints."""
    try:
        settings.build(type(operator), dataclasses.asdict(operator))
    except (SettingsError, TypeError, NameError) as error:
        raise SettingsError(
            f"{place}: {error}; an operator is a frozen dataclass, and its fields, which are saved, are plain str, "
            "int, float, bool or tuples of one of them"
        ) from error


def check_input(place: str, name: str, widths: Mapping[str, int], operators: Collection[str]) -> None:
    """SettingsError unless ``name`` is an earlier value: one of ``widths``, which are known for some ``operators``."""
    if name in widths:
        if not widths[name]:
            raise SettingsError(
                f"{place} reads {name!r}, but this data has no {name} features: prepare it with one, or write a "
                "network that does not read them, such as jobs/configs/movielens_net.py"
            )
        return
    if name in operators:
        raise SettingsError(f"{place} reads {name!r}, which is computed after it: put it before")
    raise SettingsError(f"{place} reads {name!r}, which no operator computes{settings.suggestion(name, widths)}")


def check_form(width: object, parameters: object) -> None:
    """ValueError unless the width is valid and parameters are pairs of a name and a shape."""
    _check_size("its width", width)
    for parameter in parameters if isinstance(parameters, tuple) else (parameters,):
        match parameter:
            case (str(name), tuple(shape)) if shape:
                for size in shape:
                    _check_size(f"the shape of parameter {name!r}", size)
            case _:
                raise ValueError(
                    f"parameter {parameter!r:.60} is not a pair of a name and a shape: parameters are "
                    '((f"{self.name}.weight", (outputs, inputs)), ...)'
                )


def check_names(place: str, begin: str, names: Sequence[str], taken: Collection[str]) -> None:
    """SettingsError unless parameter names start with their operator's name and are unique in the network."""
    for number, name in enumerate(names):
        if not name.startswith(begin):
            raise SettingsError(
                f'{place}: parameter {name!r} does not begin with that name: call it f"{{self.name}}.{name}"'
            )
        if name in taken or name in names[:number]:
            raise SettingsError(f"{place}: there are two parameters {name!r}: give one of them another name")


def _check_size(what: str, size: object) -> None:
    if type(size) is not int or size < 1:
        raise ValueError(f"{what} is {size!r:.60}, not a whole number of at least 1")
