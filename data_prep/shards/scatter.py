"""Pass 2, first half: encode every piece, and write its packed rows grouped by shard.

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
from data_prep.pieces import OpenPiece, Piece, Unit
from data_prep.preparation import Preparation
from data_prep.progress import ProgressBar
from data_prep.ranks import RawDataError
from data_prep.raw.text_stream import CHANGED
from data_prep.rows import Rows
from data_prep.shards.packing import ListGrouping, Packer, Scratch, item_type
from data_prep.splits import ShardLayout
from data_prep.vocabulary.scan import PieceRecord
from ssmpi.runtime.files import atomic_file

READ_BYTES = 1 << 20


@dataclass(frozen=True)
class GroupedFile:
    """What a piece has for its shards, grouped by shard. Beside it is a file with its checksum and the start of each
    shard's.
    """

    path: Path

    def save(self, content: np.ndarray, starts: np.ndarray) -> None:
        """Write ``content``, rows or ids, of which shards begin at ``starts``, unsigned (shards + 1,)."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        beside = self.path.with_name(f"{self.path.name}.tmp")
        beside.unlink(missing_ok=True)  # else a link that lies there would be followed
        with atomic_file.naming(self.path), beside.open("xb") as out:
            atomic_file.write_all(out, content)
        beside.replace(self.path)
        checksum = np.array([zlib.crc32(content.data)], dtype=starts.dtype)
        save_array(self._index, np.concatenate([checksum, starts]))

    def starts(self) -> np.ndarray:
        """The start of each shard's: unsigned (shards + 1,)."""
        found: np.ndarray = np.load(self._index)
        return found[1:]

    def saved(self) -> bool:
        """Whether it is intact on disk."""
        if not (self.path.is_file() and self._index.is_file()):
            return False
        checksum = 0
        with self.path.open("rb") as file:
            while part := file.read(READ_BYTES):
                checksum = zlib.crc32(part, checksum)
        return checksum == int(np.load(self._index)[0])

    @property
    def _index(self) -> Path:
        return self.path.with_name(f"{self.path.name}.npy")


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

    def rows(self, work: Path) -> GroupedFile:
        """Its packed rows uint8 (rows, row_bytes)."""
        return GroupedFile(work / "pieces" / f"piece-{self.record.source:04d}-{self.record.piece:06d}.rows")

    def lists(self, work: Path) -> GroupedFile:
        """The packed ids of its lists."""
        return GroupedFile(self.rows(work).path.with_suffix(".lists"))

    def saved(self, work: Path, *, lists: bool) -> bool:
        """Whether all of it is intact on disk."""
        return self.rows(work).saved() and (not lists or self.lists(work).saved())


def place(records: list[PieceRecord], by_split: bool) -> list[PlacedPiece]:
    """Number the rows of all pieces, in input order, or all of the first split before all of the second."""
    counts = np.array([record.splits if by_split else [record.rows] for record in records])
    before = np.cumsum(counts, axis=0) - counts
    firsts = before + np.concatenate([[0], np.cumsum(counts.sum(axis=0))[:-1]])
    return [PlacedPiece(record, tuple(first)) for record, first in zip(records, firsts.tolist(), strict=True)]


class Grouping:
    """The rows of a piece on their way to their shards. ``_at`` int64 (shards,): the place in ``_out`` uint8 (rows,
    row_bytes) of the next row of each shard.
    """

    def __init__(self, work: Path, placed: PlacedPiece, packer: Packer, layout: ShardLayout, scratch: Scratch) -> None:
        self.placed, self._packer, self._work = placed, packer, work
        self._by_split = placed.shards(layout)
        counts = np.bincount(np.concatenate(self._by_split), minlength=len(layout.targets()))
        self._offsets = np.concatenate([[0], np.cumsum(counts)])
        self._at, self.rows, self._used = self._offsets[:-1].copy(), 0, [0] * len(self._by_split)
        self._out = scratch.array("packed", (placed.record.rows, packer.row_bytes), np.uint8)
        features = packer.of.features
        self._lists = ListGrouping(len(counts), item_type(features)) if features.lists else None

    def add(self, rows: Rows) -> None:
        """Pack the next rows."""
        shards = self._next_shards(rows.rows, rows.split)
        self._packer.pack(rows, shards, self._at, self._out, self._lists)

    def _next_shards(self, rows: int, split: np.ndarray | None) -> np.ndarray:
        """The shards int32 (rows,) of the next rows; ``split``: uint8 (rows,), if rows say theirs."""
        first, self.rows = self.rows, self.rows + rows
        if split is None:
            return self._by_split[0][first : self.rows]
        found = np.empty(rows, dtype=np.int32)
        for s, shards in enumerate(self._by_split):
            chosen = split == s
            count = int(np.count_nonzero(chosen))
            found[chosen] = shards[self._used[s] : self._used[s] + count]
            self._used[s] += count
        return found

    def save(self) -> None:
        """Write the grouped rows and lists."""
        if self._lists:
            ids, starts = self._lists.grouped()
            self.placed.lists(self._work).save(ids, starts.astype(np.uint64))
        self.placed.rows(self._work).save(self._out, self._offsets.astype(np.uint32))


def scatter(job: Preparation, placed: list[PlacedPiece], packer: Packer, layout: ShardLayout) -> None:
    """Write the grouped pieces that do not exist yet."""
    by_key, lists = {p.record.key: p for p in placed}, bool(job.format.features.lists)

    def body() -> None:
        mine = job.deal()
        with ProgressBar(job.ranks, "pass 2: encode", sum(unit.bytes for unit in mine), "B") as progress:
            scratch = Scratch()
            for unit in mine:
                pieces = _pieces(unit, by_key)
                done = {p.record.key for p in pieces if p.record.rows == 0 or p.saved(job.work, lists=lists)}
                if pieces and len(done) == len(pieces):
                    progress.advance(unit.bytes, 0)
                    continue
                for opened in job.open_pieces(unit, done):
                    if opened.piece not in by_key:
                        raise RawDataError(CHANGED.format(opened.source.path))
                    _scatter_piece(opened, Grouping(job.work, by_key[opened.piece], packer, layout, scratch), progress)

    job.ranks.together(body)


def _pieces(unit: Unit, by_key: Mapping[Piece, PlacedPiece]) -> list[PlacedPiece]:
    if unit.piece is None:
        return [placed for (source, _), placed in by_key.items() if source == unit.source.index]
    found = by_key.get((unit.source.index, unit.piece))
    return [found] if found else []


def _scatter_piece(opened: OpenPiece, grouping: Grouping, progress: ProgressBar) -> None:
    record = grouping.placed.record
    for block, read in opened.blocks():
        if grouping.rows + block.rows > record.rows:
            raise RawDataError(CHANGED.format(opened.source.path))
        grouping.add(block)
        progress.advance(read, block.rows)
    if grouping.rows != record.rows or opened.digest != record.digest:
        raise RawDataError(CHANGED.format(opened.source.path))
    grouping.save()
