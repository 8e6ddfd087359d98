"""What the formats of tables have in common: features, transforms, and what is recorded and checked of all rows."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from data_prep.kept_rows import ROW_BYTES, VALUE_BYTES
from data_prep.options import PrepareOptions
from data_prep.pieces import RawSource
from data_prep.preparation import RowFormat
from data_prep.ranks import RawDataError
from data_prep.rows import Rows
from data_prep.table.arrow_strings import ARROW
from data_prep.table.row_builder import RowBuilder
from data_prep.table.schema import KEYS, STRING, Schema, some
from ssmpi.runtime.compiled.jit import njit
from ssmpi.runtime.errors import DataError

NO_PARTITION = "__HIVE_DEFAULT_PARTITION__"  # the value of rows without one
UNSCALED = 1000  # values from here on are far from those that networks are made for


@njit(cache=True, nogil=True)
def _put(values: np.ndarray, out: np.ndarray) -> None:
    """``out`` float32 (rows,) of ``values`` float64, 0 for NaN."""
    for row in range(values.size):
        value = values[row]
        out[row] = np.float32(0) if np.isnan(value) else np.float32(value)


class TableFormat(RowFormat):
    """A table, in text or Parquet, as a schema describes it."""

    token_type = np.uint64
    packs_floats = True

    def __init__(self, schema: Schema, sources: Sequence[RawSource], seed: int, only_train: bool) -> None:
        self.schema = schema
        self.features, self.labelled = schema.features, schema.label is not None
        self.transform = ", ".join(f"{name}: {column.transform}" for name, column in schema.dense.items()) or "none"
        self.splits_rows = schema.split.by != "rows"
        self.hashes_alone = not self.awaits(fitting=True)
        self._kinds = schema.kinds()
        columns = schema.sparse.values()
        self.min_counts = [column.min_count for column in columns]
        self.hash_ranges, self.hashes = [column.hash for column in columns], [c.type == STRING for c in columns]
        self._builder = RowBuilder(schema, seed, only_train, _splits_of_files(schema, sources))

    def identity(self) -> dict[str, Any]:
        """The schema."""
        return self.schema.identity()

    def chosen_split(self, options: PrepareOptions) -> tuple[str, str]:
        """As given, else as the schema says."""
        rule = self.schema.split
        kind = options.split or (rule.by if rule.by != "rows" else ",".join(map(str, rule.shares)))
        return kind, options.split_name or ("train" if self.labelled else "test")

    def awaits(self, *, fitting: bool) -> list[str]:
        """Vocabularies, means and deviations, by column; and lists are not kept until their shards are known."""
        counted = [name for name, column in self.schema.sparse.items() if not column.hash]
        scaled = [name for name, column in self.schema.dense.items() if column.transform == "standardize"]
        what = {"the vocabulary of": counted, "mean and deviation of": scaled}
        found = [f"{text} {some(names, 3)}" for text, names in what.items() if names and fitting]
        return found + [f"the shards of the lists of {some(self.schema.lists, 3)}"] * bool(self.schema.lists)

    def kept_bytes(self, sources: Sequence[RawSource]) -> int:
        """Of values of at most ``VALUE_BYTES``; none of lists, of which nobody knows how long they are in text."""
        if self.schema.lists:
            return 0
        return sum(map(self.estimated_rows, sources)) * (ROW_BYTES + VALUE_BYTES * len(self._kinds))

    def fitted(self, moments: np.ndarray) -> dict[str, Any]:
        """Names, hashed features with their ranges or with keys, and mean and standard deviation of dense ones."""
        number = np.maximum(moments[:, 0], 1)
        mean = moments[:, 1] / number
        deviation = np.sqrt(np.maximum(moments[:, 2] / number - mean * mean, 0))
        scale = np.stack([mean, np.where(deviation > 0, deviation, 1)], axis=1)
        hashed = {name: column.hash for name, column in self.schema.sparse.items() if 0 < column.hash < KEYS}
        about = {"features": list(self.features.sparse), "hashed": hashed, "scale": scale.tolist()}
        if self.features.keyed:  # only then, so that vocabularies without keys stay the same to the byte
            about["keyed"] = list(self.features.keyed)
        return about | {"table": self.schema.columns_identity()}

    def check(self, records: Sequence[Any], sources: Sequence[RawSource], *, fitting: bool) -> None:
        """Refuse a feature to fit that is missing in every row, and files that are not in the order of time."""
        rows = sum(record.rows for record in records)
        missing = np.sum([record.missing for record in records], axis=0)
        for name, count in zip(self.features.dense + self.features.sparse, missing, strict=True):
            if fitting and rows and count == rows:
                raise RawDataError(
                    f"column {name!r} is missing in all {rows:,} rows; remove it from {self.schema.path}"
                )
        last = None
        for record in (one for one in records if one.times):
            if last and record.times[0] < last.times[1]:
                name, path, before = self.schema.time, sources[record.source].path, sources[last.source].path
                begin, end = map(self.schema.moment, (record.times[0], last.times[1]))
                raise RawDataError(
                    f"{path}: {name} begins at {begin}, before {end} in {before}, but the "
                    'split goes by the order of rows; sort the rows and files by time, or write split.by = "time"'
                )
            last = record

    def remarks(self, records: Sequence[Any]) -> list[str]:
        """Dense features of a labelled table whose values are large and not scaled."""
        if not self.labelled:
            return []
        largest = np.max([record.largest for record in records], axis=0)
        return [
            f'WARNING: {name} reaches {most:.3g}, which "none" does not scale: training may diverge. '
            f'Write {name} = "standardize" or "log1p" in [dense] of {self.schema.path}.'
            for (name, column), most in zip(self.schema.dense.items(), largest, strict=True)
            if column.transform == "none" and most >= UNSCALED
        ]

    def packed(self, rows: Rows, fitted: Mapping[str, Any]) -> np.ndarray:
        """The bits of float32 values after their transforms."""
        out = np.empty((rows.rows, len(rows.dense)), dtype=np.float32)
        for f, column in enumerate(self.schema.dense.values()):
            values = rows.dense[f]
            if isinstance(column.missing, int | float):
                values = np.where(np.isnan(values), column.missing, values)
            if column.transform == "log1p":
                values = np.log1p(np.maximum(values, 0))
            elif column.transform == "standardize":
                mean, deviation = fitted["scale"][f]
                values = (values - mean) / deviation
            _put(values, out[:, f])
        return out.view(np.uint32).astype(np.int64)


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


def _splits_of_files(schema: Schema, sources: Sequence[RawSource]) -> list[int]:
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
