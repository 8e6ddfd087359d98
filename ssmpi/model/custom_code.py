"""The operators of a network whose classes are in a user's file."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

from ssmpi.model.network import Operator
from ssmpi.runtime.user_code import is_own, kind_of

REMEDY = "jobs/guide/networks.md has an example under 'Custom networks'"


def own_operators(operators: Iterable[Operator]) -> list[Operator]:
    """The custom operators among ``operators``."""
    return [operator for operator in operators if is_own(type(operator))]


def kinds_of(operators: Iterable[Operator]) -> str:
    """The kinds of the custom operators among ``operators``, for messages."""
    return ", ".join(dict.fromkeys(kind_of(type(operator)) for operator in own_operators(operators)))


def texts_of(operators: Iterable[Operator]) -> dict[str, str]:
    """The files of the custom operators among ``operators``: names and texts."""
    modules = [sys.modules[type(operator).__module__] for operator in own_operators(operators)]
    return {Path(str(module.__file__)).name: vars(module)["__source__"] for module in modules}
