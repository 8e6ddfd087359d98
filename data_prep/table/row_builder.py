"""Makes rows of a table of Arrow columns: hashed strings, checked values, splits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from data_prep.rows import BadRows, Rows, Tokens
from data_prep.splits import draw_shards
from data_prep.table.arrow_strings import ARROW, StringReader, hashes_of, missing_values, null_where_missing, tokens_of
from data_prep.table.lists import ListReader
from data_prep.table.schema import BUCKET, KEYS, REFUSE, STRING, Label, Schema

ROW_BITS, PIECE_BITS = 27, 21  # of the numbers that random splits are drawn for
DRAWS = 1 << 30
SALT = 0x5EED
MOST_NEGATIVE = 2.0**62  # of a number that is its own bucket
REPAIR = "repair or remove the row"
FLOAT32_MAX = float(np.finfo(np.float32).max)
OPERATORS = {
    "": np.equal,
    "==": np.equal,
    "!=": np.not_equal,
    ">=": np.greater_equal,
    "<=": np.less_equal,
    ">": np.greater,
    "<": np.less,
}


@dataclass
class RowOrigin:
    """How far a piece has been read: rows, and the last time."""

    source: int
    piece: int
    rows: int = 0
    time: float = -np.inf


class RowBuilder:
    """Makes rows of Arrow columns that were read as ``Schema.kinds`` says. ``file_splits``: of each source, by file."""

    def __init__(self, schema: Schema, seed: int, only_train: bool, file_splits: Sequence[int] = ()) -> None:
        self.schema, self._seed, self._only_train, self._file_splits = schema, seed, only_train, file_splits
        self._kinds, self.missing = schema.kinds(), missing_values(schema)
        self._strings, self._lists = StringReader(self.missing), ListReader(self.missing)
        others = {schema.label.column if schema.label else "", schema.split.column, schema.time}
        self.hashed_strings = [
            name for name, column in schema.categorical.items() if column.type == STRING and name not in others
        ]  # of which nothing but hashes is needed

    def build(self, columns: Mapping[str, pa.Array], rows: int, origin: RowOrigin) -> tuple[Rows, BadRows]:
        """The rows, and what is wrong with the bad ones. Advances ``origin`` to the end of these rows."""
        schema = self.schema
        bad = BadRows()
        columns = {name: self._strings_of(name, column) for name, column in columns.items()}
        dense = np.empty((len(schema.dense), rows))
        for f, name in enumerate(schema.dense):
            dense[f] = _numbers(columns[name])
            self._check_dense(name, dense[f], bad)
        tokens = [self._tokens(name, columns[name], bad) for name in schema.categorical]
        lists = []
        for name, listed in schema.lists.items():
            found, wrong = self._lists.read(name, listed, columns[name], columns.get(listed.weights))
            lists.append(found)
            bad |= wrong
        label = self._labels(columns, bad) if schema.label else np.zeros(rows, dtype=np.uint8)
        times = _numbers(columns[schema.time]) if schema.sorted or schema.split.by == "time" else None
        split = self._splits(columns, times, rows, origin, bad)
        if schema.sorted and times is not None:
            self._check_order(times, origin, bad)
        times = times if schema.sorted else None
        return Rows(label, dense, tokens, split, times, self._only_train, lists), bad

    def _strings_of(self, name: str, column: pa.Array) -> pa.Array:
        """Strings of which more than hashes is needed as bytes, null where missing; other columns as they are."""
        if self._kinds[name] != STRING or name in self.hashed_strings:
            return column
        return null_where_missing(column.cast(ARROW[STRING]), self.missing)

    def _tokens(self, name: str, column: pa.Array, bad: BadRows) -> Tokens:
        if name in self.hashed_strings:
            return self._strings.tokens(name, column)
        of = self.schema.categorical[name]
        if of.type == BUCKET:
            numbers = _numbers(column)
            beyond = (numbers < -MOST_NEGATIVE) | (numbers == np.inf)
            bad.add(beyond, f"value of {name}", lambda row: f"{name} is {numbers[row]}, which has no bucket; {REPAIR}")
            column = pa.array(buckets(np.where(beyond, np.nan, numbers)), from_pandas=True).cast(pa.int64())
        values = (hashes_of if of.hash == KEYS else tokens_of)(column)
        return Tokens(values, column.is_null().to_numpy(zero_copy_only=False).view(np.uint8))

    def _check_dense(self, name: str, values: np.ndarray, bad: BadRows) -> None:
        column = self.schema.dense[name]
        beyond = np.abs(values) > (np.finfo(np.float64).max if column.transform == "log1p" else FLOAT32_MAX)
        bad.add(beyond, "dense value", lambda row: f"{name} is {values[row]}, beyond float32; {REPAIR}")
        if column.missing == REFUSE:
            refused = f"{name} is missing, which the schema refuses; repair or remove the row, or write missing = 0"
            bad.add(np.isnan(values), "missing value", lambda row: refused)

    def _labels(self, columns: Mapping[str, pa.Array], bad: BadRows) -> np.ndarray:
        rule = self.schema.label
        assert rule is not None
        column = columns[rule.column]
        if isinstance(rule.value, str):
            equal = pc.equal(column, pa.scalar(rule.value.encode(), column.type))
            values = equal.fill_null(False).to_numpy(zero_copy_only=False) ^ (rule.operator == "!=")
            wrong = column.is_null().to_numpy(zero_copy_only=False)
        else:
            numbers = _numbers(column)
            values = OPERATORS[rule.operator](numbers, rule.value)
            wrong = np.isnan(numbers) if rule.operator else (numbers != 0) & (numbers != 1)
        bad.add(wrong, "label", lambda row: _wrong_label(rule, column[row]))
        return values.astype(np.uint8)

    def _splits(
        self,
        columns: Mapping[str, pa.Array],
        times: np.ndarray | None,
        rows: int,
        origin: RowOrigin,
        bad: BadRows,
    ) -> np.ndarray | None:
        rule = self.schema.split
        if rule.by == "rows":
            return None
        if rule.by == "file":
            return np.full(rows, self._file_splits[origin.source], dtype=np.uint8)
        if rule.by == "random":
            first = (((origin.source << PIECE_BITS) + origin.piece) << ROW_BITS) + origin.rows
            origin.rows += rows
            drawn = np.empty(rows, dtype=np.int32)
            draw_shards(self._seed ^ SALT, (first + (1 << 63)) % (1 << 64) - (1 << 63), DRAWS, drawn)  # as int64
            return np.searchsorted(np.cumsum(rule.shares)[:-1] * DRAWS, drawn, side="right").astype(np.uint8)
        if rule.by == "time":
            assert times is not None
            bad.add(np.isnan(times), "time", lambda row: f"{self.schema.time} is missing; {REPAIR}")
            found = np.searchsorted(rule.until, times, side="right")
            return np.where((found == 1) & (len(rule.until) == 1), 2, np.minimum(found, 2)).astype(np.uint8)
        column = columns[rule.column]
        values = [v.encode() if rule.type == STRING else int(v) for v in rule.values]
        of = pa.array(values).cast(column.type, safe=False)
        indices = pc.index_in(column, value_set=of).fill_null(-1).to_numpy()
        remedy = "name it in [split], or remove the row"
        bad.add(
            indices < 0,
            "split",
            lambda row: f"{rule.column} is {_shown(column[row])}, a value of no split; {remedy}",
        )
        return np.array(list(rule.values.values()), dtype=np.uint8)[indices]

    def _check_order(self, times: np.ndarray, origin: RowOrigin, bad: BadRows) -> None:
        before, schema = np.fmax.accumulate(np.concatenate([[origin.time], times])), self.schema
        remedy = 'the split goes by the order of rows; sort the rows by time, or write split.by = "time"'

        def found(row: int) -> str:
            now, earlier = schema.moment(times[row]), schema.moment(before[row])
            return f"{schema.time} is {now}, after a row of {earlier}, but {remedy}"

        bad.add(~(times >= before[:-1]), "time order", found)
        origin.time = float(before[-1])


def buckets(numbers: np.ndarray) -> np.ndarray:
    """The bucket of each number, float64 (rows,): floor(ln(x)^2) above 2, as BARS has it for Criteo_x4, else the number
    without its fraction; NaN for NaN.
    """
    return np.where(numbers > 2, np.floor(np.log(np.maximum(numbers, 2)) ** 2), np.trunc(numbers))


def _wrong_label(rule: Label, found: pa.Scalar) -> str:
    if not found.is_valid:
        return f"the label {rule.column} is missing; {REPAIR}"
    return (
        f"the label {rule.column} is {_shown(found)}, not 0 or 1; repair the row, or write a rule "
        f"such as {rule.column} >= 4"
    )


def _shown(value: pa.Scalar) -> str:
    found = value.as_py()
    return repr(found.decode("utf-8", "backslashreplace")[:60] if isinstance(found, bytes) else found)


def _numbers(column: pa.Array) -> np.ndarray:
    """float64 (rows,), NaN where missing."""
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.int64())
    found: np.ndarray = column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    return found
