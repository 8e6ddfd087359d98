"""Rows of a table in files, as they were read: for a later pass, where parsing the raw file again takes longer.

A block of rows is a line of JSON, with the bytes of the raw file that it took, and the kind and size of each of its
arrays; and their bytes. Only the process that wrote the files reads them: so nothing is flushed to disk, and a job that
is started again reads the raw file again.
"""

from __future__ import annotations

import errno
import json
from collections.abc import Iterator
from dataclasses import dataclass
from io import BufferedReader, FileIO
from pathlib import Path
from typing import Any

import numpy as np

from data_prep.preparation import OpenPiece, Piece, RawSource, Unit
from data_prep.table.rows import TableRows
from data_prep.tokens import Tokens
from ssmpi.runtime.compiled.jit import njit
from ssmpi.runtime.files import atomic_file

FILE_BYTES = 16 << 20  # about: what has been read gives its memory and disk to what is written
SAME = "same"  # as in the block before, such as the tokens of a dictionary
ROW_BYTES, VALUE_BYTES = 10, 9  # at most, of a row without its columns, and of a value

Arrays = list[Any]  # np.ndarray, or None where rows have none


class KeptRows:
    """The rows that this process keeps in ``folder``, of so many dense columns; ``only_train``: see ``TableRows``. In
    the last pass each file is removed when it has been read, and no more rows are kept.
    """

    def __init__(self, folder: Path, columns: int, *, only_train: bool) -> None:
        self.is_last_pass = False
        self._folder, self._columns, self._only_train = folder, columns, only_train
        self._pieces: dict[Piece, KeptPiece] = {}

    def pieces_of(self, unit: Unit) -> list[KeptPiece]:
        """Those of a unit, if all of them are kept."""
        if unit.piece is not None:
            piece = self._pieces.get((unit.source.index, unit.piece))
            return [piece] if piece else []
        kept = [self._pieces[key] for key in sorted(self._pieces) if key[0] == unit.source.index]
        return kept if kept and kept[-1].last and len(kept) == kept[-1].piece[1] + 1 else []

    def keeping(self, opened: OpenPiece) -> OpenPiece:
        """A piece that is kept while it is read."""
        return opened if self.is_last_pass else KeepingPiece(opened, self)

    def writer(self, piece: Piece) -> RowWriter:
        """For the rows of a piece."""
        return RowWriter(self._folder / f"piece-{piece[0]:04d}-{piece[1]:06d}")

    def add(self, opened: OpenPiece, paths: list[Path]) -> None:
        """A piece whose rows are all in files now."""
        kept = KeptPiece(self, paths, opened.piece, opened.source, opened.last, (opened.digest, opened.skipped))
        self._pieces[opened.piece] = kept

    def read(self, paths: list[Path]) -> Iterator[tuple[TableRows, int]]:
        """The blocks of files, each with the bytes of the raw file that it took."""
        arrays = Arrays()
        for path in paths:
            with atomic_file.naming(path), path.open("rb") as file:
                while header := file.readline():
                    taken, kinds = json.loads(header)
                    before = arrays or [None] * len(kinds)
                    arrays = [
                        old if kind == SAME else kind and _read(file, *kind)
                        for kind, old in zip(kinds, before, strict=True)
                    ]
                    yield _rows(arrays, self._columns, self._only_train), taken
            if self.is_last_pass:
                path.unlink()


@dataclass(frozen=True)
class KeepingPiece:
    """An ``OpenPiece`` of a raw file whose rows are written to files as they are read."""

    opened: OpenPiece
    to: KeptRows

    def __getattr__(self, name: str) -> Any:
        return getattr(self.opened, name)

    def blocks(self) -> Iterator[tuple[TableRows, int]]:
        """As those of the raw file."""
        with self.to.writer(self.opened.piece) as writer:
            for rows, taken in self.opened.blocks():
                assert isinstance(rows, TableRows)
                writer.write(rows, taken)
                yield rows, taken
        self.to.add(self.opened, writer.paths)


@dataclass(frozen=True)
class KeptPiece:
    """An ``OpenPiece`` whose rows are in files; ``found``: checksum and skipped rows of the raw file."""

    of: KeptRows
    paths: list[Path]
    piece: Piece
    source: RawSource
    last: bool
    found: tuple[str, dict[str, list[int]]]

    @property
    def digest(self) -> str:
        """The checksum of the piece of the raw file."""
        return self.found[0]

    @property
    def skipped(self) -> dict[str, list[int]]:
        """Its bad rows."""
        return self.found[1]

    def blocks(self) -> Iterator[tuple[TableRows, int]]:
        """As those of the raw file."""
        return self.of.read(self.paths)

    def read_through(self) -> Iterator[int]:
        """The bytes that blocks took of the raw file."""
        return (taken for _, taken in self.blocks())


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

    def write(self, rows: TableRows, taken: int) -> None:
        """Append a block, which took so many bytes of the raw file."""
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
            for array in (np.frombuffer(json.dumps([taken, header]).encode() + b"\n", np.uint8), *new):
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
