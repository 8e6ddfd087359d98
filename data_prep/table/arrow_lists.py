"""Lists of Arrow columns, and columns of Arrow's view types."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from data_prep.raw.diagnosis import shorten


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
