"""Pass 2, first half: encode every piece and write its packed rows grouped by shard.

A grouped piece is written once. It is not flushed to disk, which would take longer than computing it again: after a
crash its checksum shows whether it is intact, and a restarted job continues with the next piece.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from data_prep.files import save_array
from data_prep.preparation import OpenPiece, Piece, Preparation, RowFormat
from data_prep.progress import ProgressBar
from data_prep.ranks import RawDataError
from data_prep.raw.sources import CHANGED
from data_prep.scratch import Scratch
from data_prep.shards.packing import pack, row_bytes
from data_prep.shards.shard_layout import ShardLayout
from data_prep.vocabulary.encoding import Encoder
from data_prep.vocabulary.scan import PieceRecord
from ssmpi.files import atomic_file

READ_BYTES = 1 << 20


@dataclass(frozen=True)
class PlacedPiece:
    """A piece of the input and the number of its first row over all sources."""

    record: PieceRecord
    first_row: int

    def path(self, work: Path) -> Path:
        """The path of its grouped rows."""
        return work / "pieces" / f"piece-{self.record.source:04d}-{self.record.piece:06d}.rows"

    def save(self, work: Path, packed: np.ndarray, offsets: np.ndarray) -> None:
        """Write the grouped rows uint8 (rows, row_bytes); ``offsets`` uint32 (shards + 1,) are the starts of the
        groups.
        """
        path = self.path(work)
        path.parent.mkdir(parents=True, exist_ok=True)
        beside = path.with_suffix(".tmp")
        with atomic_file.naming(path), beside.open("wb") as out:
            out.write(packed.data)
        beside.replace(path)
        checksum = np.array([zlib.crc32(packed.data)], dtype=np.uint32)
        save_array(path.with_suffix(".npy"), np.concatenate([checksum, offsets]))

    def offsets(self, work: Path) -> np.ndarray:
        """The start of each shard's rows: uint32 (shards + 1,)."""
        found: np.ndarray = np.load(self.path(work).with_suffix(".npy"))
        return found[1:]

    def saved(self, work: Path) -> bool:
        """Whether the grouped rows are intact on disk."""
        path, index = self.path(work), self.path(work).with_suffix(".npy")
        if not (path.is_file() and index.is_file()):
            return False
        checksum = 0
        with path.open("rb") as file:
            while part := file.read(READ_BYTES):
                checksum = zlib.crc32(part, checksum)
        return checksum == int(np.load(index)[0])


def place(records: list[PieceRecord]) -> list[PlacedPiece]:
    """Number the rows of all pieces, in input order."""
    starts = np.cumsum([0, *(record.rows for record in records)])
    return [PlacedPiece(record, int(start)) for record, start in zip(records, starts, strict=False)]


@dataclass(frozen=True)
class Done:
    """The pieces that need not be read; the owner of a piece checks once whether it is on disk."""

    work: Path
    placed: Mapping[Piece, PlacedPiece]

    def __contains__(self, piece: object) -> bool:
        one = self.placed.get(piece)  # type: ignore[call-overload]
        return one is not None and (one.record.rows == 0 or one.saved(self.work))


@dataclass(frozen=True)
class Destination:
    """The destination of rows, and the progress bar. ``wide``: the widths of packed columns."""

    work: Path
    of: RowFormat
    layout: ShardLayout
    wide: np.ndarray
    progress: ProgressBar
    scratch: Scratch


def scatter(
    job: Preparation, placed: list[PlacedPiece], encoder: Encoder, layout: ShardLayout, wide: np.ndarray
) -> None:
    """Write the grouped pieces that do not exist yet, with columns of ``wide`` bytes."""
    by_key = {p.record.key: p for p in placed}

    def body() -> None:
        mine = job.deal()
        with ProgressBar(job.ranks, "pass 2: encode", sum(unit.bytes for unit in mine), "B") as progress:
            placement = Destination(job.work, job.format, layout, wide, progress, Scratch())
            for unit in mine:
                for opened in job.format.open_pieces(job, unit, Done(job.work, by_key)):
                    if opened.piece not in by_key:
                        raise RawDataError(CHANGED.format(opened.source.path))
                    _scatter_piece(opened, by_key[opened.piece], encoder, placement)

    job.ranks.together(body)


def _scatter_piece(opened: OpenPiece, placed: PlacedPiece, encoder: Encoder, placement: Destination) -> None:
    rows = placed.record.rows
    shards = placement.layout.shard_of(placed.first_row, placed.first_row + rows)
    counts = np.bincount(shards, minlength=len(placement.layout.targets()))
    offsets = np.concatenate([[0], np.cumsum(counts)])
    at, row = offsets[:-1].copy(), 0
    out = placement.scratch.array("packed", (rows, row_bytes(placement.wide)), np.uint8)
    for block, read in opened.blocks():
        if row + block.rows > rows:
            raise RawDataError(CHANGED.format(opened.source.path))
        columns = (encoder.ids(block), placement.of.packed(block, encoder.vocabulary.about), block.label)
        pack(columns, placement.wide, shards[row : row + block.rows], at, out)
        row += block.rows
        placement.progress.advance(read, block.rows)
    if row != rows or opened.digest != placed.record.digest:
        raise RawDataError(CHANGED.format(opened.source.path))
    placed.save(placement.work, out, offsets.astype(np.uint32))
