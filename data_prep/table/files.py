"""What the files of a table must have."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from pathlib import Path

from data_prep.table.schema import Schema
from ssmpi.core.errors import DataError


def require_columns(schema: Schema, path: Path, names: Sequence[str]) -> None:
    """DataError if a file lacks a column that the schema uses, or has it twice."""
    for name in schema.kinds():
        if names.count(name) > 1:
            raise DataError(f"{path}: two columns {name!r}; rename one")
        if name not in names:
            close = difflib.get_close_matches(name, names, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"it has {', '.join(map(repr, names[:12]))}"
            headless = "" if schema.columns else "; if its first line is no header, name the columns in table.columns"
            raise DataError(f"{path}:1: no column {name!r}, which {schema.path} names; {hint}{headless}")
