"""List columns: text that is split, or lists of Arrow, as lists of 64-bit tokens."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from data_prep.raw.diagnosis import shorten
from data_prep.table.arrow_strings import ARROW, missing_values, tokens_of
from data_prep.table.schema import INTEGER, STRING, ListColumn, Schema
from data_prep.token_lists import TokenLists

NOT_INTEGER, TOO_LONG = "value of {}", "length of {}"  # reasons


def are_lists(kind: pa.DataType) -> bool:
    """Whether values of an Arrow type are lists."""
    return any(
        is_one(kind)
        for is_one in (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list, pa.types.is_list_view)
    )


class ListReader:
    """Reads the list columns of a schema."""

    def __init__(self, schema: Schema) -> None:
        self._missing = missing_values(schema)

    def read(self, name: str, column: ListColumn, values: pa.Array) -> tuple[TokenLists, dict[int, tuple[str, str]]]:
        """The lists of some rows, and what is wrong with the bad ones. A missing list is empty; missing values in one
        are left out.
        """
        lists = values if are_lists(values.type) else _split(values, column.separator)
        of = np.repeat(np.arange(len(lists)), pc.list_value_length(lists).fill_null(0).to_numpy(zero_copy_only=False))
        each = lists.flatten()
        if pa.types.is_dictionary(each.type):
            each = each.dictionary_decode()
        if not pa.types.is_integer(each.type):
            each = each.cast(ARROW[STRING])
            gone = pc.or_(pc.is_in(each, self._missing), each.is_null())
            of, each = of[~gone.to_numpy(zero_copy_only=False)], each.filter(pc.invert(gone))
        elif each.null_count:
            of, each = of[each.is_valid().to_numpy(zero_copy_only=False)], each.drop_null()
        bad: dict[int, tuple[str, str]] = {}
        if column.type == INTEGER:
            each = _integers(name, each, of, bad)
        return self._bounded(name, column, values, TokenLists(tokens_of(each), _ends(of, len(lists))), bad), bad

    def _bounded(
        self, name: str, column: ListColumn, values: pa.Array, lists: TokenLists, bad: dict[int, tuple[str, str]]
    ) -> TokenLists:
        """Lists that are not too long; the others are cut, or added to the bad rows."""
        lengths = lists.lengths
        if column.truncate:
            place = np.arange(len(lists.tokens)) - np.repeat(lists.ends - lengths, lengths)
            return TokenLists(lists.tokens[place < column.longest], np.cumsum(np.minimum(lengths, column.longest)))
        for row in np.flatnonzero(lengths > column.longest):
            bad[int(row)] = (
                TOO_LONG.format(name),
                f"{name} has {lengths[row]:,} values, and longest = {column.longest:,} in {_shown(values[int(row)])}; "
                f"raise longest of list.{name} in the schema, write truncate = true there, or remove the row",
            )
        return lists


def _split(values: pa.Array, separator: str) -> pa.Array:
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    return pc.split_pattern(values.cast(ARROW[STRING]), pattern=separator)


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


def _shown(value: pa.Scalar) -> str:
    found = value.as_py()
    return shorten(found if isinstance(found, bytes) else str(found).encode())
