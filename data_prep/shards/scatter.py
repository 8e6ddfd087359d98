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
from data_prep.preparation import OpenPiece, Piece, Preparation, RowFormat, Rows
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
    """A piece of the input. ``firsts``: the number of its first row over all sources, or, if rows say their split, the
    numbers of its first row of each split, where rows are counted split by split."""

    record: PieceRecord
    firsts: tuple[int, ...]

    def shards(self, layout: ShardLayout) -> list[np.ndarray]:
        """The shards int32 of its rows: of all of them, or of those of each split."""
        rows = self.record.splits if len(self.firsts) > 1 else [self.record.rows]
        return [layout.shard_of(first, first + n) for first, n in zip(self.firsts, rows, strict=True)]

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


def place(records: list[PieceRecord], by_split: bool) -> list[PlacedPiece]:
    """Number the rows of all pieces, in input order, or all of the first split before all of the second."""
    counts = np.array([record.splits if by_split else [record.rows] for record in records])
    before = np.cumsum(counts, axis=0) - counts
    firsts = before + np.concatenate([[0], np.cumsum(counts.sum(axis=0))[:-1]])
    return [PlacedPiece(record, tuple(first)) for record, first in zip(records, firsts.tolist(), strict=True)]


def shards_of(rows: Rows, first: int, by_split: list[np.ndarray], used: list[int]) -> np.ndarray:
    """The shards int32 (rows,) of the rows from row ``first`` of a piece on; ``used``: rows of each split before."""
    if rows.split is None:
        return by_split[0][first : first + rows.rows]
    out = np.empty(rows.rows, dtype=np.int32)
    for s, shards in enumerate(by_split):
        chosen = rows.split == s
        count = int(np.count_nonzero(chosen))
        out[chosen] = shards[used[s] : used[s] + count]
        used[s] += count
    return out


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
    by_split = placed.shards(placement.layout)
    used = [0] * len(by_split)
    counts = np.bincount(np.concatenate(by_split), minlength=len(placement.layout.targets()))
    offsets = np.concatenate([[0], np.cumsum(counts)])
    at, row = offsets[:-1].copy(), 0
    out = placement.scratch.array("packed", (rows, row_bytes(placement.wide)), np.uint8)
    for block, read in opened.blocks():
        if row + block.rows > rows:
            raise RawDataError(CHANGED.format(opened.source.path))
        integers = placement.of.packed(block, encoder.vocabulary.about)
        columns = (encoder.ids(block), encoder.keys(block), integers, block.label)
        pack(columns, placement.wide, shards_of(block, row, by_split, used), at, out)
        row += block.rows
        placement.progress.advance(read, block.rows)
    if row != rows or opened.digest != placed.record.digest:
        raise RawDataError(CHANGED.format(opened.source.path))
    placed.save(placement.work, out, offsets.astype(np.uint32))
