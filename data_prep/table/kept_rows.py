"""Rows of a table in a file, as they were read: for a later pass, where decoding the raw file again takes longer.

A block of rows is a line of JSON, with the kind and size of each of its arrays, and their bytes. Only the process that
wrote the file reads it: so nothing is flushed to disk, and a job that is started again reads the raw file again.
"""

from __future__ import annotations

import errno
import json
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path
from typing import Any

import numpy as np

from data_prep.table.rows import TableRows
from data_prep.tokens import Tokens
from ssmpi.compiled.jit import njit
from ssmpi.files import atomic_file

SAME = "same"  # as in the block before, such as the tokens of a dictionary
ROW_BYTES, VALUE_BYTES = 10, 9  # at most, of a row without its columns, and of a value

Arrays = list[Any]  # np.ndarray, or None where rows have none


class RowWriter:
    """Writes blocks of rows without lists to a new file."""

    def __init__(self, path: Path) -> None:
        self._path, self._last = path, Arrays()
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_file.naming(path):
            self._out = path.open("wb", buffering=0)  # else closing it could find the disk full

    def __enter__(self) -> RowWriter:
        return self

    def __exit__(self, *unused: object) -> None:
        self._out.close()

    def write(self, rows: TableRows) -> None:
        """Append a block."""
        last, self._last = self._last, _arrays(rows)
        header: list[object] = []
        new = []
        for place, array in enumerate(self._last):
            if array is None or (last and array is last[place]):
                header.append(None if array is None else SAME)
            else:
                header.append((array.dtype.str, len(array)))
                new.append(array.view(np.uint8).data)
        with atomic_file.naming(self._path):
            for left in (memoryview(json.dumps(header).encode() + b"\n"), *new):
                while left.nbytes:
                    left = left[self._out.write(left) :]


def read_rows(path: Path, columns: int, *, only_train: bool) -> Iterator[TableRows]:
    """The blocks of a file, of so many dense columns; ``only_train``: see ``TableRows``."""
    arrays = Arrays()
    with atomic_file.naming(path), path.open("rb") as file:
        while header := file.readline():
            kinds = json.loads(header)
            before = arrays or [None] * len(kinds)
            arrays = [
                old if kind == SAME else kind and _read(file, *kind) for kind, old in zip(kinds, before, strict=True)
            ]
            yield _rows(arrays, columns, only_train)


def _read(file: BufferedReader, kind: str, size: int) -> np.ndarray:
    array = np.empty(size, kind)
    if file.readinto(array.view(np.uint8).data) < array.nbytes:
        raise OSError(errno.EIO, "ends too early")
    return array


def _arrays(rows: TableRows) -> Arrays:
    """The arrays of a block: those of rows, of dense columns, as float32 where that is exact, and of sparse ones."""
    found: Arrays = [rows.label, rows.split, rows.times]
    for values in rows.dense:
        narrow = np.empty(rows.rows, np.float32)
        found.append(narrow if _narrowed(values, narrow) else np.ascontiguousarray(values))
    for one in rows.tokens:
        codes = None if one.codes is None else one.codes.astype(np.min_scalar_type(len(one.values)))
        found += [one.values, one.missing, codes]
    return found


def _rows(arrays: Arrays, columns: int, only_train: bool) -> TableRows:
    label, split, times, *others = arrays
    dense = np.empty((columns, len(label)))
    for f, values in enumerate(others[:columns]):
        dense[f] = values
    sparse = others[columns:]
    tokens = [
        Tokens(values, missing, codes=None if codes is None else codes.astype(np.int32))
        for values, missing, codes in zip(sparse[::3], sparse[1::3], sparse[2::3], strict=True)
    ]
    return TableRows(label, dense, tokens, split, times, only_train)


@njit(cache=True, nogil=True)
def _narrowed(values: np.ndarray, narrow: np.ndarray) -> bool:
    """Copy float64 to float32 (rows,); whether all are the same."""
    exact = True
    for row in range(values.size):
        narrow[row] = values[row]
        exact &= np.float64(narrow[row]) == values[row] or np.isnan(values[row])
    return exact
