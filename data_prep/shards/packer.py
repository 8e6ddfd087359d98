"""How a preparation packs its rows, and rows that are packed when they are read, before anybody knows their shards.

Where nothing has to be known of all rows (``Preparation.awaits``), the first pass keeps each piece's packed rows, in
their order, in a file, and the second groups them from there: the raw files are read once. A kept piece is not flushed
to disk; if a crash has damaged it, or a grouped piece, that piece alone is read again.
"""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from data_prep.files import save_array
from data_prep.preparation import Piece, RowFormat, Rows
from data_prep.scratch import Scratch
from data_prep.shards.list_ids import ListGrouping
from data_prep.shards.packing import pack, row_bytes
from data_prep.vocabulary.encoding import Encoder
from ssmpi.runtime.files import atomic_file

READ_BYTES = 1 << 20


@dataclass(frozen=True)
class Packer:
    """The vocabulary, the format, and ``wide``, the bytes of each packed column."""

    encoder: Encoder
    of: RowFormat
    wide: np.ndarray

    @property
    def row_bytes(self) -> int:
        """Bytes of a packed row."""
        return row_bytes(self.wide)

    def pack(
        self, rows: Rows, shards: np.ndarray, at: np.ndarray, out: np.ndarray, lists: ListGrouping | None = None
    ) -> None:
        """Pack rows as the function ``packing.pack`` does; their lists go to ``lists``."""
        integers, ids = self.of.packed(rows, self.encoder.vocabulary.about), self.encoder.ids(rows)
        if lists:
            ids = np.concatenate([ids, lists.add(self.encoder.list_ids(rows), rows.lists, shards)])
        columns = (ids, self.encoder.keys(rows), integers, rows.label)
        pack(columns, self.wide, shards, at, out)


@dataclass(frozen=True)
class KeptPiece:
    """The packed rows of a piece, in their order, of ``row_bytes`` each. Beside them is a file with two checksums, and
    the split of each row, uint8, if rows say theirs.
    """

    work: Path
    piece: Piece
    row_bytes: int

    @property
    def path(self) -> Path:
        """The path of the rows."""
        return self.work / "kept" / f"piece-{self.piece[0]:04d}-{self.piece[1]:06d}.rows"

    @property
    def _beside(self) -> Path:
        return self.path.with_suffix(".npy")

    def intact(self, rows: int) -> bool:
        """Whether all ``rows`` of the piece are on disk."""
        if not (self.path.is_file() and self._beside.is_file()):
            return False
        head, splits = self._read_beside()
        sound = zlib.crc32(splits.data) == head[1] and len(splits) in (0, rows)
        return sound and self.path.stat().st_size == rows * self.row_bytes and file_crc(self.path) == head[0]

    def blocks(self) -> Iterator[tuple[np.ndarray, np.ndarray | None]]:
        """(Packed rows uint8 (n, row_bytes), their splits uint8 (n,) or None)."""
        _, splits = self._read_beside()
        first, count = 0, max(1, READ_BYTES // self.row_bytes)
        with atomic_file.naming(self.path), self.path.open("rb") as file:
            while content := file.read(count * self.row_bytes):
                rows = np.frombuffer(content, np.uint8).reshape(-1, self.row_bytes)
                yield rows, splits[first : first + len(rows)] if len(splits) else None
                first += len(rows)

    def save(self, checksum: int, splits: list[np.ndarray]) -> None:
        """Write the file beside the rows: only with it they are there."""
        every = np.concatenate([np.empty(0, np.uint8), *splits])
        head = np.array([checksum, zlib.crc32(every.data)], np.uint32)
        save_array(self._beside, np.concatenate([head.view(np.uint8), every]))

    def remove(self) -> None:
        """Delete it, for its rows are grouped."""
        self._beside.unlink(missing_ok=True)
        self.path.unlink(missing_ok=True)

    def _read_beside(self) -> tuple[np.ndarray, np.ndarray]:
        found = np.load(self._beside)
        return found[:8].view(np.uint32), found[8:]


@dataclass(frozen=True)
class Keeper:
    """Keeps the rows of pieces while they are read."""

    work: Path
    packer: Packer
    scratch: Scratch

    @contextlib.contextmanager
    def open(self, piece: Piece) -> Iterator[Callable[[Rows], None]]:
        """A function that keeps the next rows of a piece. It is there once all have been kept."""
        kept, checksum, splits = KeptPiece(self.work, piece, self.packer.row_bytes), 0, list[np.ndarray]()
        kept.path.parent.mkdir(parents=True, exist_ok=True)
        kept.remove()
        with atomic_file.naming(kept.path):
            out = kept.path.open("wb", buffering=0)  # else closing it could find the disk full

        def keep(rows: Rows) -> None:
            nonlocal checksum
            packed = self.scratch.array("kept", (rows.rows, kept.row_bytes), np.uint8)
            self.packer.pack(rows, np.zeros(rows.rows, np.int32), np.zeros(1, np.int64), packed)
            checksum = zlib.crc32(packed.data, checksum)
            if rows.split is not None:
                splits.append(rows.split.astype(np.uint8))
            with atomic_file.naming(kept.path):
                atomic_file.write_all(out, packed)

        with out:
            yield keep
        kept.save(checksum, splits)


def file_crc(path: Path) -> int:
    """CRC-32 of a file."""
    checksum = 0
    with path.open("rb") as file:
        while part := file.read(READ_BYTES):
            checksum = zlib.crc32(part, checksum)
    return checksum
