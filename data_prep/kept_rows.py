"""Rows in files, as they were read: for a later pass, where parsing the raw file again takes longer.

A file has pickled blocks of rows. Only the process that wrote it reads it: so nothing is flushed to disk, and a job
that is started again reads the raw file again.
"""

from __future__ import annotations

import errno
import pickle
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from io import FileIO
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from data_prep.pieces import Block, OpenPiece, Piece, Unit
from data_prep.rows import Rows
from ssmpi.runtime.compiled.jit import njit
from ssmpi.runtime.files import atomic_file

FILE_BYTES = 16 << 20  # about: what has been read gives its memory and disk to what is written
ROW_BYTES, VALUE_BYTES = 10, 9  # at most, of a row without its columns, and of a value


class KeptRows:
    """The rows that this process keeps in ``folder``. In the last pass each file is removed when it has been read, and
    no more rows are kept. If they fill the disk, all are dropped: what is written later needs the room.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.is_last_pass, self._dropped = folder, False, False
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
        opened.keep = None if self.is_last_pass or self._dropped else self._keep
        return opened

    def _keep(self, opened: OpenPiece) -> Iterator[Block]:
        blocks, files = opened.read(), list[RowFile]()
        self.folder.mkdir(parents=True, exist_ok=True)
        for number in count():
            file = RowFile(self.folder / f"piece-{opened.piece[0]:04d}-{opened.piece[1]:06d}-{number:05d}")
            files.append(file)
            yield from file.write(blocks)
            if file.fills_disk:
                self.drop(files)
                yield from blocks
                return
            if not file.full:
                break
        self._pieces[opened.piece] = KeptPiece(
            piece=opened.piece, source=opened.source, last=opened.last, digest=opened.digest, skipped=opened.skipped,
            of=self, files=files,
        )  # fmt: skip

    def drop(self, more: Sequence[RowFile] = ()) -> None:
        """Remove all rows that are kept, with those in ``more`` files, and keep no more."""
        for file in [*more, *(file for piece in self._pieces.values() for file in piece.files)]:
            file.path.unlink()
        self._pieces, self._dropped = {}, True
        print(f"{self.folder}: the disk has no room for the rows: the raw files are read again", flush=True)


@dataclass(kw_only=True)
class KeptPiece(OpenPiece):
    """A piece whose rows are in files."""

    of: KeptRows
    files: list[RowFile]

    def read(self) -> Iterator[Block]:
        """As they were read from the raw file."""
        for file in self.files:
            yield from file.read()
            if self.of.is_last_pass:
                file.path.unlink()

    def read_through(self) -> Iterator[int]:
        """The bytes that blocks took of the raw file."""
        return (taken for _, taken in self.read())


@dataclass
class RowFile:
    """Blocks of rows, each with the bytes of the raw file that it took; what several have, such as the tokens of a
    dictionary, is there once. ``full``: more blocks belong into another file; ``fills_disk``: the last block is not
    there, because the disk had no room for it.
    """

    path: Path
    blocks: int = 0
    full: bool = False
    fills_disk: bool = False

    def write(self, blocks: Iterator[Block]) -> Iterator[Block]:
        """Write and yield blocks until the file is large or there are no more."""
        with self.path.open("wb", buffering=0) as out:  # with a buffer, closing it could find the disk full
            pickler = pickle.Pickler(_Unbuffered(out), pickle.HIGHEST_PROTOCOL)
            for rows, taken in blocks:
                try:
                    with atomic_file.naming(self.path):
                        pickler.dump((*_narrow(rows), taken))
                except OSError as error:
                    if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                        raise
                    self.fills_disk = True
                yield rows, taken
                if self.fills_disk:
                    return
                self.blocks += 1
                if out.tell() >= FILE_BYTES:
                    self.full = True
                    return

    def read(self) -> Iterator[Block]:
        """The blocks."""
        with atomic_file.naming(self.path), self.path.open("rb") as file:
            unpickler = pickle.Unpickler(file)
            for _ in range(self.blocks):
                try:
                    rows, columns, taken = unpickler.load()
                except (EOFError, pickle.UnpicklingError) as error:
                    raise OSError(errno.EIO, "ends too early", str(self.path)) from error
                yield _widened(rows, columns), taken


@dataclass(frozen=True)
class _Unbuffered:
    """A file that writes all bytes of what it is given."""

    out: FileIO

    def write(self, content: Any) -> int:
        array = np.frombuffer(content, np.uint8)
        atomic_file.write_all(self.out, array)
        return array.size


def _narrow(rows: Rows) -> tuple[Rows, list[np.ndarray]]:
    """Rows with small codes of tokens and without dense values; and these, as float32 where that is exact."""
    columns: list[np.ndarray] = []
    for values in rows.dense:
        narrow = np.empty(rows.rows, np.float32)
        columns.append(narrow if _narrowed(values, narrow) else np.ascontiguousarray(values))
    tokens = [
        one if one.codes is None else replace(one, codes=one.codes.astype(np.min_scalar_type(len(one.values))))
        for one in rows.tokens
    ]
    return replace(rows, dense=rows.dense[:0], tokens=tokens), columns


def _widened(rows: Rows, columns: list[np.ndarray]) -> Rows:
    """As before ``_narrow``."""
    dense = np.empty((len(columns), rows.rows))
    for values, narrow in zip(dense, columns, strict=True):
        values[:] = narrow
    tokens = [one if one.codes is None else replace(one, codes=one.codes.astype(np.int32)) for one in rows.tokens]
    return replace(rows, dense=dense, tokens=tokens)


@njit(cache=True, nogil=True)
def _narrowed(values: np.ndarray, narrow: np.ndarray) -> bool:
    """Copy float64 to float32 (rows,); whether all are the same."""
    exact = True
    for row in range(values.size):
        narrow[row] = values[row]
        exact &= np.float64(narrow[row]) == values[row] or np.isnan(values[row])
    return exact
