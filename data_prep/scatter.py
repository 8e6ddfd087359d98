"""Pass 2, first half: encode every piece and leave its rows grouped by the shard they go to.

A grouped piece is one int32 array (rows, 41): row number in the piece, 26 ids, 13 dense values as bits, label. It is
written once and whole, so a restarted job goes on with the next piece.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numba import njit

from data_prep.encoding import Encoder
from data_prep.files import save_array
from data_prep.options import RECORD_BYTES, Job
from data_prep.pieces import OpenPiece, Piece, deal, open_pieces
from data_prep.progress import Progress
from data_prep.scan import PieceRecord
from data_prep.scratch import Scratch
from data_prep.splits import Layout
from ssmpi.data.schema import DENSE_FEATURES, SPARSE_FEATURES
from ssmpi.errors import DataError

ROW_AT, IDS_AT, DENSE_AT = 0, 1, 1 + SPARSE_FEATURES
LABEL_AT = DENSE_AT + DENSE_FEATURES
RECORD_INTS = LABEL_AT + 1
assert RECORD_BYTES == 4 * RECORD_INTS
CHANGED = "{}: changed since the job began; start again with --overwrite"


@dataclass(frozen=True)
class Placed:
    """A piece of the input and the number of its first row over all sources."""

    record: PieceRecord
    first_row: int

    def path(self, work: Path) -> Path:
        """Where its grouped rows are."""
        return work / "pieces" / f"piece-{self.record.source:04d}-{self.record.piece:06d}.npy"

    def offsets_path(self, work: Path) -> Path:
        """Where each shard's rows begin in it: uint32 (shards + 1,)."""
        return self.path(work).with_suffix(".offsets.npy")


def place(records: list[PieceRecord]) -> list[Placed]:
    """Number the rows of all pieces, in input order."""
    starts = np.cumsum([0, *(record.rows for record in records)])
    return [Placed(record, int(start)) for record, start in zip(records, starts, strict=False)]


@njit(cache=True, nogil=True)
def _group(
    shards: np.ndarray, at: np.ndarray, row: int, columns: tuple[np.ndarray, np.ndarray, np.ndarray], out: np.ndarray
) -> None:
    ids, dense, label = columns
    for i in range(shards.size):
        slot = at[shards[i]]
        at[shards[i]] += 1
        out[slot, ROW_AT] = row + i
        for f in range(SPARSE_FEATURES):
            out[slot, IDS_AT + f] = ids[i, f]
        for f in range(DENSE_FEATURES):
            out[slot, DENSE_AT + f] = dense[i, f]
        out[slot, LABEL_AT] = label[i]


def scatter(job: Job, placed: list[Placed], encoder: Encoder, layout: Layout) -> None:
    """Write the grouped pieces that are not there yet."""
    by_key = {p.record.key: p for p in placed}

    def body() -> None:
        done: set[Piece] = {key for key, p in by_key.items() if p.record.rows == 0 or p.path(job.work).is_file()}
        mine = deal(job)
        with Progress(job.ranks, "pass 2: encode", sum(unit.bytes for unit in mine), "B") as progress:
            placement = Placement(job.work, layout, progress, Scratch())
            for unit in mine:
                for opened in open_pieces(job, unit, done):
                    if opened.piece not in by_key:
                        raise DataError(CHANGED.format(opened.source.path))
                    _scatter_piece(opened, by_key[opened.piece], encoder, placement)

    job.ranks.together(body)


@dataclass(frozen=True)
class Placement:
    """Where rows go and who is told."""

    work: Path
    layout: Layout
    progress: Progress
    scratch: Scratch


def _scatter_piece(opened: OpenPiece, placed: Placed, encoder: Encoder, placement: Placement) -> None:
    rows = placed.record.rows
    shards = placement.layout.shard_of(placed.first_row, placed.first_row + rows)
    counts = np.bincount(shards, minlength=len(placement.layout.targets()))
    offsets = np.concatenate([[0], np.cumsum(counts)])
    at, row = offsets[:-1].copy(), 0
    out = placement.scratch.array("records", (rows, RECORD_INTS), np.int32)
    position = opened.stream.file_position
    for block in opened.blocks():
        if row + block.rows > rows:
            raise DataError(CHANGED.format(opened.source.path))
        part = shards[row : row + block.rows]
        _group(part, at, row, (encoder.ids(block), block.dense.view(np.int32), block.label), out)
        row += block.rows
        before, position = position, opened.stream.file_position
        placement.progress.advance(position - before, block.rows)
    if row != rows:
        raise DataError(CHANGED.format(opened.source.path))
    save_array(placed.offsets_path(placement.work), offsets.astype(np.uint32))
    save_array(placed.path(placement.work), out)
