"""Weights of lists: a column with a number for each value of a list, as lists or as text with the same separator.

A column of its own, as TensorFlow and TorchRec have it, serves text and Parquet alike. With ``token:weight`` in a cell
no token could hold a colon, and lists of Parquet would have to be text.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from data_prep.table.arrow_lists import lengths_of, shown
from data_prep.table.schema import ListColumn

WRONG_COUNT, NO_NUMBER = "number of {}", "value of {}"  # reasons


def weights_of(
    name: str, column: ListColumn, lists: tuple[pa.Array, pa.Array], there: np.ndarray, bad: dict[int, tuple[str, str]]
) -> np.ndarray:
    """Weights float32 (values,) of all values of some rows, from ``lists`` of the values and of their weights. Rows
    that have another number of weights, or no finite one for a value that is ``there``, bool (values,), are added to
    ``bad``.
    """
    counts, weighed = (lengths_of(some) for some in lists)
    fits = counts == weighed
    for row in np.flatnonzero(~fits):
        bad[int(row)] = (
            WRONG_COUNT.format(column.weights),
            f"{column.weights} has {weighed[row]:,} weights, and {name} {counts[row]:,} values; repair or remove the "
            "row",
        )
    found, texts = np.ones(len(there), np.float32), lists[1].flatten()
    places, of_texts = (np.flatnonzero(np.repeat(fits, each)) for each in (counts, weighed))
    found[places] = _numbers(texts)[of_texts]
    of = np.repeat(np.arange(len(counts)), counts)
    for i in np.flatnonzero(there[places] & ~np.isfinite(found[places])):
        bad[int(of[places[i]])] = (
            NO_NUMBER.format(column.weights),
            f"{column.weights} has {shown(texts[int(of_texts[i])])}, not a finite number of float32, for a value of "
            f"{name}; repair or remove the row",
        )
    return found


def _numbers(texts: pa.Array) -> np.ndarray:
    """float32 (n,) of numbers or of text, NaN for what is none."""
    if pa.types.is_dictionary(texts.type):
        texts = texts.dictionary_decode()
    try:
        numbers = texts.cast(pa.float64())
    except pa.ArrowInvalid:
        codes = texts.dictionary_encode()
        distinct = pa.array([_number(value) for value in codes.dictionary], pa.float64())
        numbers = distinct.take(codes.indices)
    with np.errstate(over="ignore"):
        return pc.fill_null(numbers, np.nan).to_numpy(zero_copy_only=False).astype(np.float32)


def _number(value: pa.Scalar) -> float | None:
    """What Arrow reads, None if it does not."""
    try:
        found: float = value.cast(pa.float64()).as_py()
    except pa.ArrowInvalid:
        return None
    return found
