"""Rows of a table in files, as they were read: for a later pass, where decoding the raw file again takes longer.

A block of rows is a line of JSON, with the kind and size of each of its arrays, and their bytes. Only the process that
wrote the files reads them: so nothing is flushed to disk, and a job that is started again reads the raw file again.
"""

from __future__ import annotations

import errno
import json
from collections.abc import Iterator, Sequence
from io import BufferedReader, FileIO
from pathlib import Path
from typing import Any

import numpy as np

from data_prep.table.rows import TableRows
from data_prep.tokens import Tokens
from ssmpi.runtime.compiled.jit import njit
from ssmpi.runtime.files import atomic_file

FILE_BYTES = 16 << 20  # about: what has been read gives its memory and disk to what is written
SAME = "same"  # as in the block before, such as the tokens of a dictionary
ROW_BYTES, VALUE_BYTES = 10, 9  # at most, of a row without its columns, and of a value

Arrays = list[Any]  # np.ndarray, or None where rows have none


class RowWriter:
    """Writes blocks of rows without lists to new files, ``paths``, whose names begin with that of ``path``."""

    def __init__(self, path: Path) -> None:
        self.paths: list[Path] = []
        self._path, self._last, self._left = path, Arrays(), 0
        self._out: FileIO | None = None
        path.parent.mkdir(parents=True, exist_ok=True)

    def __enter__(self) -> RowWriter:
        return self

    def __exit__(self, *unused: object) -> None:
        if self._out:
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
                new.append(array)
        out = self._file()
        with atomic_file.naming(self.paths[-1]):
            for array in (np.frombuffer(json.dumps(header).encode() + b"\n", np.uint8), *new):
                self._left -= array.nbytes
                atomic_file.write_all(out, array)

    def _file(self) -> FileIO:
        if self._out is None or self._left <= 0:
            self.__exit__()
            self.paths.append(self._path.with_name(f"{self._path.name}-{len(self.paths):05d}"))
            with atomic_file.naming(self.paths[-1]):
                self._out = FileIO(self.paths[-1], "w")  # without a buffer: closing it could find the disk full
            self._left = FILE_BYTES
        return self._out


def read_rows(paths: Sequence[Path], columns: int, *, only_train: bool, last: bool) -> Iterator[TableRows]:
    """The blocks of files, of so many dense columns; ``only_train``: see ``TableRows``; ``last``: each file is removed
    when it has been read.
    """
    arrays = Arrays()
    for path in paths:
        with atomic_file.naming(path), path.open("rb") as file:
            while header := file.readline():
                kinds = json.loads(header)
                before = arrays or [None] * len(kinds)
                arrays = [
                    old if kind == SAME else kind and _read(file, *kind)
                    for kind, old in zip(kinds, before, strict=True)
                ]
                yield _rows(arrays, columns, only_train)
        if last:
            path.unlink()


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
