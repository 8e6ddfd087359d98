"""Lists of Arrow columns."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from data_prep.raw.diagnosis import shorten


def are_lists(kind: pa.DataType) -> bool:
    """Whether values of an Arrow type are lists."""
    return any(
        is_one(kind)
        for is_one in (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list, pa.types.is_list_view)
    )


def lengths_of(lists: pa.Array) -> np.ndarray:
    """How many values each has, integers (rows,); 0 for a missing one."""
    found: np.ndarray = pc.list_value_length(lists).fill_null(0).to_numpy(zero_copy_only=False)
    return found


def shown(value: pa.Scalar) -> str:
    """A value of a column, for messages."""
    found = value.as_py()
    return "nothing" if found is None else shorten(found if isinstance(found, bytes) else str(found).encode())
