"""JSON and TOML from users or other programs: any error in it is a ValueError."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable
from typing import Any

from ssmpi.runtime.errors import ContentError

DEPTH = 100  # of values in values


def parse_json(text: str | bytes) -> Any:
    """The value of a JSON text."""
    return _parse(json.loads, text)


def parse_toml(text: str) -> dict[str, Any]:
    """The values of a TOML text."""
    found: dict[str, Any] = _parse(tomllib.loads, text)
    return found


def _parse(parse: Callable[[Any], Any], text: str | bytes) -> Any:
    try:
        level = [found := parse(text)]
    except RecursionError:
        raise ContentError(f"its values are nested more than {DEPTH} deep") from None
    except ValueError as error:
        if "integer string conversion" in str(error):  # by Python, which limits them
            raise ContentError("it has a whole number of thousands of digits") from None
        raise
    for _ in range(DEPTH):
        level = [inner for outer in level for inner in _inside(outer)]
    if level:
        raise ContentError(f"its values are nested more than {DEPTH} deep")
    return found


def _inside(value: Any) -> list[Any]:
    return list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []
