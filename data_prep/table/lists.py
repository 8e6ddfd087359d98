"""List columns: text that is split, or lists of Arrow, as lists of 64-bit tokens."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from data_prep.raw.diagnosis import shorten
from data_prep.table.arrow_lists import are_lists, lengths_of, shown
from data_prep.table.arrow_strings import ARROW, missing_values, null_where_missing, tokens_of
from data_prep.table.list_weights import weights_of
from data_prep.table.schema import BRACKETS, INTEGER, STRING, ListColumn, Schema
from data_prep.table.text_values import lists_in_brackets
from data_prep.token_lists import TokenLists

NOT_INTEGER, TOO_LONG, NOT_LIST = "value of {}", "length of {}", "list of {}"  # reasons


class ListReader:
    """Reads the list columns of a schema."""

    def __init__(self, schema: Schema) -> None:
        self._missing = missing_values(schema)

    def read(
        self, name: str, column: ListColumn, values: pa.Array, weights: pa.Array | None = None
    ) -> tuple[TokenLists, dict[int, tuple[str, str]]]:
        """The lists of some rows, and what is wrong with the bad ones. A missing list is empty; missing values in one
        are left out, and so are their weights.
        """
        bad = dict[int, tuple[str, str]]()
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

    def _lists(self, name: str, values: pa.Array, separator: str, bad: dict[int, tuple[str, str]]) -> pa.Array:
        """Lists of a list column or of text: null if missing, or if the text is no list, which ``bad`` then names."""
        if are_lists(values.type):
            return values
        if pa.types.is_dictionary(values.type):
            values = values.dictionary_decode()
        texts = null_where_missing(values.cast(ARROW[STRING]), self._missing)
        if separator != BRACKETS:
            return pc.split_pattern(texts, pattern=separator)
        lists = lists_in_brackets(texts)
        for row in np.flatnonzero(pc.and_(lists.is_null(), texts.is_valid()).to_numpy(zero_copy_only=False)):
            found = f"{name} is {shown(texts[int(row)])}, no list in brackets such as [7, 12]; repair or remove the row"
            bad[int(row)] = (NOT_LIST.format(name), found)
        return lists

    def _gone(self, each: pa.Array) -> np.ndarray:
        """Where values are missing: bool (values,)."""
        gone = each.is_null()
        if pa.types.is_binary(each.type):
            gone = pc.or_(gone, pc.is_in(each, self._missing))
        found: np.ndarray = gone.to_numpy(zero_copy_only=False)
        return found

    def _bounded(
        self, name: str, column: ListColumn, values: pa.Array, lists: TokenLists, bad: dict[int, tuple[str, str]]
    ) -> TokenLists:
        """Lists that are not too long; the others are cut, or added to the bad rows."""
        if column.truncate:
            return lists.cut(column.longest)
        lengths = lists.lengths
        for row in np.flatnonzero(lengths > column.longest):
            bad[int(row)] = (
                TOO_LONG.format(name),
                f"{name} has {lengths[row]:,} values, and longest = {column.longest:,} in {shown(values[int(row)])}; "
                f"raise longest of list.{name} in the schema, write truncate = true there, or remove the row",
            )
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


def _integers(name: str, each: pa.Array, of: np.ndarray, bad: dict[int, tuple[str, str]]) -> pa.Array:
    """Values as int64, 0 for what is no integer, whose rows are bad."""
    if pa.types.is_integer(each.type):
        return each.cast(ARROW[INTEGER], safe=False)
    try:
        return each.cast(ARROW[INTEGER])
    except pa.ArrowInvalid:
        codes = each.dictionary_encode()
    distinct = [_integer(value) for value in codes.dictionary.to_pylist()]
    wrong = np.array([value is None for value in distinct])[codes.indices.to_numpy()]
    for at in np.flatnonzero(wrong):
        found = f"{name} has {shorten(each[int(at)].as_py())}, not an integer; repair or remove the row"
        bad.setdefault(int(of[at]), (NOT_INTEGER.format(name), found))
    return pa.array(distinct, ARROW[INTEGER]).fill_null(0).take(codes.indices)


def _integer(value: bytes) -> int | None:
    """What Arrow reads, None if it does not."""
    try:
        found: int = pa.scalar(value, ARROW[STRING]).cast(ARROW[INTEGER]).as_py()
    except pa.ArrowInvalid:
        return None
    return found
