"""What the files of a table must have."""

from __future__ import annotations

import csv
import difflib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from data_prep.preparation import RawSource
from data_prep.raw.sources import text_format
from data_prep.raw.text_stream import TextStream, mark_size, row_ends
from data_prep.table.arrow_strings import ARROW
from data_prep.table.schema import LINE, MULTILINE, UNQUOTED, Schema
from ssmpi.runtime.errors import DataError

NO_PARTITION = "__HIVE_DEFAULT_PARTITION__"  # the value of rows without one


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


def splits_of_files(schema: Schema, sources: Sequence[RawSource]) -> list[int]:
    """The split of each file, where the schema splits by file; DataError unless each matches patterns of one split, and
    each pattern a file.
    """
    if schema.split.by != "file":
        return []
    splits: list[int] = []
    left = set(schema.split.values)
    for source in sources:
        matching = [pattern for pattern in schema.split.values if source.path.match(pattern)]
        left -= set(matching)
        found = {schema.split.values[pattern] for pattern in matching}
        if len(found) != 1:
            what = "matches patterns of two splits" if found else "is in no split"
            raise DataError(f"{source.path}: {what}; change the patterns in [split] of {schema.path}")
        splits += found
    if left:
        raise DataError(f"{schema.path}: no file matches {min(left)!r} of [split]; give such a file, or leave it out")
    return splits


def partition_columns(schema: Schema, source: RawSource, names: Sequence[str]) -> dict[str, pa.Scalar]:
    """What the folders around a file say of its rows: of columns that the schema names, and that are not among the
    ``names`` in the file. DataError for a value of another kind.
    """
    found = {}
    for name, kind in schema.kinds().items():
        if name in names or name not in source.partition:
            continue
        text = source.partition[name]
        try:
            array = pa.array([None if text in (NO_PARTITION, *schema.missing) else text], pa.string())
            found[name] = array.cast(ARROW[kind])[0]
        except pa.ArrowInvalid as error:
            raise DataError(f"{source.path}: its folder says {name}={text}, which is no {kind}; rename it") from error
    return found


def first_fields(source: RawSource, separator: str, *, quoted: bool) -> tuple[list[str], str]:
    """The values of the first row of text, and the row; DataError if there is none, or it is no text."""
    with TextStream(source) as stream:
        text, _ = next(stream.blocks(1), (None, 0))
        if text is None:
            raise DataError(f"{source.path}:1: holds no text; leave the file out")
        line = bytes(text[mark_size(text, 0) :]).decode("utf-8", "backslashreplace").rstrip("\r\n")
    try:
        if "\0" in line:
            raise csv.Error("it has NUL bytes")
        return next(
            csv.reader([line], delimiter=separator, quoting=csv.QUOTE_MINIMAL if quoted else csv.QUOTE_NONE)
        ), line
    except csv.Error as error:
        raise DataError(f"{source.path}:1: is no row of text ({error}); give CSV, TSV or Parquet") from error


def refuse_other_text(path: Path, line: str) -> None:
    """DataError if text that begins with this line has another format than a table."""
    if other := text_format(line):
        raise DataError(f"{path}:1: is {other}")


def quoting_of(content: bytes, separator: str) -> str:
    """How text is quoted: within lines if every quote is closed in its line; else not at all if all lines have the same
    number of separators, or over several lines.
    """
    if len(row_ends(np.frombuffer(content, np.uint8), ord(separator))[0]) == len(content.split(b"\n")) - 1:
        return LINE
    counts = {line.count(separator.encode()) for line in content.splitlines() if line}
    return UNQUOTED if len(counts) == 1 else MULTILINE
