"""List columns: text that is split, or lists of Arrow, as lists of 64-bit tokens; and their weights.

Weights are a column of their own, as TensorFlow and TorchRec have it, with a number for each value of a list. With
``token:weight`` in a cell no token could hold a colon, and lists of Parquet would have to be text.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from data_prep.raw.text_stream import shorten
from data_prep.rows import BadRows, TokenLists
from data_prep.table.arrow_strings import ARROW, cast_or_null, null_where_missing, tokens_of
from data_prep.table.schema import BRACKETS, INTEGER, STRING, ListColumn
from data_prep.table.text_values import lists_in_brackets

NOT_INTEGER, TOO_LONG, NOT_LIST = "value of {}", "length of {}", "list of {}"  # reasons
WRONG_COUNT, NO_NUMBER = "number of {}", "value of {}"


class ListReader:
    """Reads list columns; ``missing``: see ``missing_values``."""

    def __init__(self, missing: pa.Array) -> None:
        self._missing = missing

    def read(
        self, name: str, column: ListColumn, values: pa.Array, weights: pa.Array | None = None
    ) -> tuple[TokenLists, BadRows]:
        """The lists of some rows, and what is wrong with the bad ones. A missing list is empty; missing values in one
        are left out, and so are their weights.
        """
        bad = BadRows()
        lists = self._lists(name, values, column.separator, bad)
        of, each = _rows_of(lists), _each(lists)
        gone = self._gone(each)
        weighing = None
        if weights is not None:
            weighed = self._lists(column.weights, weights, column.separator, bad)
            weighing = weights_of(name, column, (lists, weighed), ~gone, bad)[~gone]
        if gone.any():
            of, each = of[~gone], each.filter(pa.array(~gone))
        if column.type == INTEGER:
            each = _integers(name, each, of, bad)
        found = TokenLists(tokens_of(each), _ends(of, len(lists)), weighing)
        return self._bounded(name, column, values, found, bad), bad

    def _lists(self, name: str, values: pa.Array, separator: str, bad: BadRows) -> pa.Array:
        """Lists of a list column or of text: null if missing, or if the text is no list, which ``bad`` then names."""
        if are_lists(values.type):
            return values
        if pa.types.is_dictionary(values.type):
            values = values.dictionary_decode()
        texts = null_where_missing(values.cast(ARROW[STRING]), self._missing)
        if separator != BRACKETS:
            return pc.split_pattern(texts, pattern=separator)
        lists = lists_in_brackets(texts)
        remedy = "no list in brackets such as [7, 12]; repair or remove the row"
        wrong = pc.and_(lists.is_null(), texts.is_valid()).to_numpy(zero_copy_only=False)
        bad.add(wrong, NOT_LIST.format(name), lambda row: f"{name} is {shown(texts[row])}, {remedy}")
        return lists

    def _gone(self, each: pa.Array) -> np.ndarray:
        """Where values are missing: bool (values,)."""
        gone = each.is_null()
        if pa.types.is_binary(each.type):
            gone = pc.or_(gone, pc.is_in(each, self._missing))
        found: np.ndarray = gone.to_numpy(zero_copy_only=False)
        return found

    def _bounded(self, name: str, column: ListColumn, values: pa.Array, lists: TokenLists, bad: BadRows) -> TokenLists:
        """Lists that are not too long; the others are cut, or added to the bad rows."""
        if column.truncate:
            return lists.cut(column.longest)
        lengths = lists.lengths
        remedy = f"raise longest of list.{name} in the schema, write truncate = true there, or remove the row"

        def found(row: int) -> str:
            most = f"longest = {column.longest:,}"
            return f"{name} has {lengths[row]:,} values, and {most} in {shown(values[row])}; {remedy}"

        bad.add(lengths > column.longest, TOO_LONG.format(name), found)
        return lists


def _rows_of(lists: pa.Array) -> np.ndarray:
    """The row of each value, ascending."""
    return np.repeat(np.arange(len(lists)), lengths_of(lists))


def _each(lists: pa.Array) -> pa.Array:
    """The values of lists: integers, or strings as bytes."""
    each = lists.flatten()
    if pa.types.is_dictionary(each.type):
        each = each.dictionary_decode()
    return each if pa.types.is_integer(each.type) else each.cast(ARROW[STRING])


def _ends(of: np.ndarray, rows: int) -> np.ndarray:
    """Where the list of each row ends, int64 (rows,), given the row of each value, ascending."""
    return np.cumsum(np.bincount(of, minlength=rows)) if rows else np.empty(0, np.int64)


def _integers(name: str, each: pa.Array, of: np.ndarray, bad: BadRows) -> pa.Array:
    """Values as int64, 0 for what is no integer, whose rows are bad."""
    if pa.types.is_integer(each.type):
        return each.cast(ARROW[INTEGER], safe=False)
    found = cast_or_null(each, ARROW[INTEGER])
    for at in np.flatnonzero(found.is_null()):
        wrong = f"{name} has {shorten(each[int(at)].as_py())}, not an integer; repair or remove the row"
        bad.setdefault(int(of[at]), (NOT_INTEGER.format(name), wrong))
    return found.fill_null(0)


def weights_of(
    name: str, column: ListColumn, lists: tuple[pa.Array, pa.Array], there: np.ndarray, bad: BadRows
) -> np.ndarray:
    """Weights float32 (values,) of all values of some rows, from ``lists`` of the values and of their weights. Rows
    that have another number of weights, or no finite one for a value that is ``there``, bool (values,), are added to
    ``bad``.
    """
    counts, weighed = (lengths_of(some) for some in lists)
    fits = counts == weighed
    bad.add(
        ~fits,
        WRONG_COUNT.format(column.weights),
        lambda row: (
            f"{column.weights} has {weighed[row]:,} weights, and {name} {counts[row]:,} values; repair or "
            "remove the row"
        ),
    )
    found, texts = np.ones(len(there), np.float32), lists[1].flatten()
    places, of_texts = (np.flatnonzero(np.repeat(fits, each)) for each in (counts, weighed))
    found[places] = _weights(texts)[of_texts]
    of = np.repeat(np.arange(len(counts)), counts)
    for i in np.flatnonzero(there[places] & ~np.isfinite(found[places])):
        bad[int(of[places[i]])] = (
            NO_NUMBER.format(column.weights),
            f"{column.weights} has {shown(texts[int(of_texts[i])])}, not a finite number of float32, for a value of "
            f"{name}; repair or remove the row",
        )
    return found


def _weights(texts: pa.Array) -> np.ndarray:
    """float32 (n,) of numbers or of text, NaN for what is none."""
    if pa.types.is_dictionary(texts.type):
        texts = texts.dictionary_decode()
    numbers = cast_or_null(texts, pa.float64())
    with np.errstate(over="ignore"):
        return pc.fill_null(numbers, np.nan).to_numpy(zero_copy_only=False).astype(np.float32)


def are_lists(kind: pa.DataType) -> bool:
    """Whether values of an Arrow type are lists."""
    types = pa.types
    lists = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
    return bool(lists or types.is_list_view(kind) or types.is_large_list_view(kind))


def without_views(kind: pa.DataType) -> pa.DataType:
    """The usual Arrow type in place of a view, as Polars writes it: few functions of pyarrow take views."""
    if are_lists(kind):
        value = without_views(kind.value_type)
        views = pa.types.is_list_view(kind) or pa.types.is_large_list_view(kind)
        return pa.list_(value) if views or value != kind.value_type else kind
    return {pa.string_view(): pa.large_string(), pa.binary_view(): pa.large_binary()}.get(kind, kind)


def usual(column: pa.Array) -> pa.Array:
    """A column without views."""
    if without_views(column.type) == column.type:
        return column
    if not are_lists(column.type):
        return column.cast(without_views(column.type))
    ends = pa.array(np.concatenate([[0], np.cumsum(lengths_of(column))]), pa.int32())  # a cast of pyarrow's lacks one
    return pa.ListArray.from_arrays(ends, usual(column.flatten()), mask=column.is_null())


def lengths_of(lists: pa.Array) -> np.ndarray:
    """How many values each has, integers (rows,); 0 for a missing one."""
    found: np.ndarray = pc.list_value_length(lists).fill_null(0).to_numpy(zero_copy_only=False)
    return found


def shown(value: pa.Scalar) -> str:
    """A value of a column, for messages."""
    found = value.as_py()
    return "nothing" if found is None else shorten(found if isinstance(found, bytes) else str(found).encode())
