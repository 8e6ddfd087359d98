"""Saves rows of one embedding PS during training, and loads the newest save of each. Training does not pause: a row
that is updated while it is copied may be saved half updated, which Hogwild tolerates. Consistent saves are checkpoints
(``manager``).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from ssmpi.embedding.table import Arena
from ssmpi.runtime.errors import DataError
from ssmpi.runtime.files.log import log
from ssmpi.runtime.files.run_files import ROWS
from ssmpi.state.checkpoint import disk
from ssmpi.state.checkpoint.rows.records import DIGEST, UNKNOWN, RecordHeader, SavedRows, read_rows, write_record
from ssmpi.state.checkpoint.rows.row_format import row_format_of


class RowStore:
    """The saved rows of ``arena`` in the file ``path``, which has a single writer. The first save is ``save_all``,
    unless ``load`` finds the saves of an earlier process. A recovery that takes every rank back to a checkpoint starts
    a new ``timeline``, and rows saved in an earlier one are ignored. ``checkpoint`` is the number of the newest
    checkpoint that the rows were copied for, 0 before; the next save is newer than it. ``go_on`` is called between
    pieces of a few MB; an exception from it ends the save.
    """

    def __init__(self, path: Path, arena: Arena, timeline: int) -> None:
        self.path, self._arena, self._timeline = path, arena, timeline
        self.checkpoint = 0
        self.go_on: Callable[[], None] = lambda: None
        self._layout, self._format = layout_of(arena), row_format_of(arena)
        self._base: RecordHeader | None = None
        self._newest: RecordHeader | None = None
        self._end = 0  # of the file, as far as it counts

    def load(self) -> SavedRows | None:
        """Load what has been saved; None if nothing was saved in this timeline. DataError if it is damaged or belongs
        to other tables. An incomplete increment, and anything after it, is dropped with a warning.
        """
        found = read_rows(self.path)
        if found is None or found[0].base.header.timeline != self._timeline:
            return None
        saved, dropped = found
        if saved.base.header.layout != self._layout:
            raise DataError(
                f"{self.path}: holds the rows of other tables, or of another number of embedding PSs; remove it, or"
                " set topology.embedding_ps, model.name, embedding.dim and embedding.optimizer back"
            )
        if dropped:
            log.warning(f"{self.path}: {dropped:,} bytes at its end are an incomplete record and are ignored")
        self._base, self._newest, self._end = saved.base.header, saved.newest, saved.end
        return saved

    def restore(self, saved: SavedRows, after: int = -1) -> int:
        """Set the rows in records that are newer than a checkpoint, by number, to their newest save: all rows without
        one. Returns the number of saves read.
        """
        count = 0
        for rows, words in saved.records_after(after):
            self._format.load(rows, words)
            count += len(rows)
        return count

    def save_all(self, samples: int) -> int:
        """Save all rows as a new base that replaces all earlier saves; returns the bytes written. OSError if the write
        fails; the earlier saves then stay valid. ``samples`` have been trained on by all trainers.
        """
        rows = self._format.all_rows()
        header = replace(self._header(samples, len(rows), increment=False), covered=samples)
        return self._replace(header, (self._written(rows[piece], number=False) for piece in header.pieces()))

    def save(self, rows: np.ndarray, samples: int, share: float, left: int = UNKNOWN) -> int:
        """Save ``rows`` int32 (n,), in ascending order, as an increment that stands for a ``share`` of a save of all
        rows; returns the bytes written. ``left`` accesses of other rows are not saved yet. Errors as ``save_all``.
        """
        assert self._newest, "increments follow a base: load or save_all first"
        assert np.all(np.diff(rows) > 0), "rows of an increment are in ascending order"
        covered, share = self._newest.covered, self._newest.share + share
        if share > 1 - 1e-9:
            covered, share = samples, max(0.0, share - 1)
        header = replace(self._header(samples, len(rows), increment=True), left=left, covered=covered, share=share)
        with disk.needing(self.path, header.bytes), disk.opened(self.path, write=True) as descriptor:
            disk.truncate(descriptor, self._end)  # what an earlier save did not finish
            pieces = (self._written(rows[piece], number=True) for piece in header.pieces())
            write_record(descriptor, self._end, header, self._while_going_on(pieces))
        self._newest, self._end = header, self._end + header.bytes
        return header.bytes

    @property
    def increments_outweigh_base(self) -> bool:
        """Whether it is time for ``compact``, so that the file stays below three times the rows."""
        return self._base is not None and self._end > 2 * self._base.bytes

    @property
    def can_compact(self) -> bool:
        """Whether base and increments number the same rows; those of keys come and go."""
        return self._format.compacts

    @property
    def base_checkpoint(self) -> int:
        """The number of the newest checkpoint before the last save of all rows; -1 if they never were saved."""
        return self._base.checkpoint if self._base else -1

    @property
    def covered(self) -> int:
        """After how many samples the rows were saved last by what PLS counts as a save of all rows."""
        assert self._newest, "nothing is saved: load or save_all first"
        return self._newest.covered

    def remove(self) -> None:
        """Remove the file, and leftovers of an interrupted save."""
        disk.remove_file(self.path)
        disk.remove_file(_beside(self.path))

    def compact(self) -> int:
        """Merge base and increments into a new base with the same rows; returns the bytes written. Errors as
        ``save_all``; DataError if a save is damaged.
        """
        written = self._end
        saved = self.load()
        if saved is None or saved.end < written:
            raise DataError(f"{self.path}: damaged since it was written: look at its disk")
        base, newest = saved.base.header, saved.newest
        header = replace(base, left=newest.left, covered=newest.covered, share=newest.share, digest=bytes(DIGEST))
        return self._replace(header, (values.view(np.int32) for _, values in saved.merged()))

    def _header(self, samples: int, count: int, *, increment: bool) -> RecordHeader:
        header = RecordHeader(increment, self._format.width, self._timeline, samples, count, self._layout)
        return replace(header, checkpoint=self.checkpoint)

    def _while_going_on(self, pieces: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
        for piece in pieces:
            self.go_on()
            yield piece

    def _written(self, rows: np.ndarray, *, number: bool) -> np.ndarray:
        """Some rows as a record has them, int32 (n, words), perhaps with the ``number`` of each."""
        first = int(number)
        out = np.empty((len(rows), first + self._format.width), np.int32)
        out[:, :first] = rows[:, None]
        self._format.store(out[:, first:], rows)
        return out

    def _replace(self, header: RecordHeader, rows: Iterable[np.ndarray]) -> int:
        """Replace the file by a new base."""
        beside = _beside(self.path)
        with disk.needing(self.path, header.bytes):
            try:
                with disk.created(beside) as descriptor:
                    write_record(descriptor, 0, header, self._while_going_on(rows))
            except BaseException:
                disk.remove_file(beside)  # a full disk needs the room
                raise
            disk.rename(beside, self.path)
            self._base, self._newest, self._end = header, header, header.bytes
            disk.sync_folder(self.path.parent)
        return header.bytes


def path_of(run: Path, server: int) -> Path:
    """Where an embedding PS of a run saves its rows."""
    return run / ROWS / f"embedding-{server:04}.rows"


def remove_beyond(run: Path, servers: int) -> None:
    """Remove the row saves of embedding PSs beyond ``servers``, from a time when the run had more of them."""
    for path in (run / ROWS).glob("embedding-*.rows"):
        if int(path.stem.rpartition("-")[2]) >= servers:
            disk.remove_file(path)


def _beside(path: Path) -> Path:
    return path.with_name(f".{path.name}.tmp")


def layout_of(arena: Arena) -> bytes:
    """A digest of which rows of which tables the arena holds, and of their width."""
    parts = [(part.table, part.first, part.stride, part.rows, part.base) for part in arena.parts]
    shape: tuple[object, ...] = (arena.cardinalities, parts, arena.weights.shape, arena.state.size)
    if arena.options.layout.weight:
        shape = (*shape, arena.options.layout)
    if arena.keyed:
        shape = (*shape, "keys of", *arena.keyed)
    return hashlib.sha256(repr(shape).encode()).digest()
