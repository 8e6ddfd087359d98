"""Saves rows of one embedding PS during training, and loads the newest save of each. Training does not pause: a row
that is updated while it is copied may be saved half updated, which Hogwild tolerates. Consistent saves are checkpoints
(``manager``). Rows of keys are stored with their keys (``KeyedRowFormat``), because a key may have another row when
they are loaded.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from ssmpi.embedding.key_kernels import RESERVED
from ssmpi.embedding.keyed_table import KeyedTable
from ssmpi.embedding.placement import Part
from ssmpi.embedding.table import Arena
from ssmpi.runtime.compiled.hash_table import NOT_FOUND
from ssmpi.runtime.errors import DataError
from ssmpi.runtime.files.log import log
from ssmpi.runtime.files.run_files import ROWS
from ssmpi.state.checkpoint import disk
from ssmpi.state.checkpoint.rows.records import DIGEST, UNKNOWN, RecordHeader, SavedRows, read_rows, write_record


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
    if arena.weights.dtype != np.float32:
        shape = (*shape, arena.weights.dtype.str)
    if arena.options.layout.weight:
        shape = (*shape, arena.options.layout)
    if arena.keyed:
        shape = (*shape, "keys of", *arena.keyed)
    return hashlib.sha256(repr(shape).encode()).digest()


class RowFormat:
    """Optimizer state, float32, and weights of a row, as they are kept, filled up to a whole word."""

    compacts = True  # base and increments can be merged: the number of a row says what it is

    def __init__(self, arena: Arena) -> None:
        self._arena, self._state = arena, arena.state.shape[1]
        self.width = self._state - (-arena.options.weight_bytes // 4)

    def all_rows(self) -> np.ndarray:
        """The numbers of the rows that a base holds, int32, ascending."""
        return np.arange(len(self._arena.weights), dtype=np.int32)

    def store(self, out: np.ndarray, rows: np.ndarray) -> None:
        """Write ``rows`` int32 (n,) into ``out`` int32 (n, width)."""
        weights = self._weights_of(out)
        if weights.shape[1] < 2 * (self.width - self._state) and weights.itemsize == 2:
            out[:, -1] = 0
        self._arena.copy(rows, weights, out.view(np.float32)[:, : self._state])

    def load(self, rows: np.ndarray, words: np.ndarray) -> None:
        """Set ``rows`` int32 (n,) to words int32 (n, width)."""
        self._arena.weights[rows] = self._weights_of(words)
        self._arena.state[rows] = words.view(np.float32)[:, : self._state]

    def _weights_of(self, words: np.ndarray) -> np.ndarray:
        """The weights in some words."""
        weights = self._arena.weights
        return words[:, self._state :].view(weights.dtype)[:, : weights.shape[1]]


class KeyedRowFormat(RowFormat):
    """Before them the number of the row, its key as two words, 0 without one, and when that was seen last, as two."""

    compacts = False
    HEAD = 5

    def __init__(self, arena: Arena) -> None:
        super().__init__(arena)
        self.width += self.HEAD
        self._parts = [(part, arena.keyed[part.table]) for part in arena.parts if part.table in arena.keyed]

    def all_rows(self) -> np.ndarray:
        """Those of ids, and those in use for keys."""
        found = []
        for part in self._arena.parts:
            keyed = self._arena.keyed.get(part.table)
            used = np.concatenate([np.arange(RESERVED), keyed.in_use()]) if keyed else np.arange(part.rows)
            found.append(part.base + used)
        return np.sort(np.concatenate(found)).astype(np.int32)

    def store(self, out: np.ndarray, rows: np.ndarray) -> None:
        """As ``RowFormat``. A row that changes its key meanwhile, at a pause of training, is written without one."""
        out[:, 0], out[:, 1 : self.HEAD] = rows, 0
        keys, seen = (np.zeros(len(rows), np.int64) for _ in range(2))
        for part, table in self._parts:
            mine = slice(*np.searchsorted(rows, (part.base, part.base + part.rows)))
            local = rows[mine] - part.base
            keys[mine], seen[mine] = table.keys[local], table.seen[local]
        super().store(out[:, self.HEAD :], rows)
        for part, table in self._parts:
            mine = slice(*np.searchsorted(rows, (part.base, part.base + part.rows)))
            keys[mine] *= keys[mine] == table.keys[rows[mine] - part.base]
        out[:, 1:3], out[:, 3:5] = keys.view(np.int32).reshape(-1, 2), seen.view(np.int32).reshape(-1, 2)

    def load(self, rows: np.ndarray, words: np.ndarray) -> None:
        """As ``RowFormat``, wherever the keys have their rows now; those that have none get one, if there is room."""
        rows, values = words[:, 0], words[:, self.HEAD :]
        keys, seen = (np.ascontiguousarray(words[:, at : at + 2]).view(np.int64)[:, 0] for at in (1, 3))
        by_number = np.ones(len(rows), bool)
        for part, table in self._parts:
            mine = slice(*np.searchsorted(rows, (part.base + RESERVED, part.base + part.rows)))
            by_number[mine] = False
            held = np.flatnonzero(keys[mine])
            target = _rows_of(part, table, keys[mine][held], seen[mine][held])
            placed = target != NOT_FOUND
            super().load(part.base + target[placed], values[mine][held][placed])
        super().load(rows[by_number], values[by_number])


def _rows_of(part: Part, table: KeyedTable, keys: np.ndarray, seen: np.ndarray) -> np.ndarray:
    """The rows of saved keys int64 (n,), seen at the dates int64 (n,): theirs, or new ones; NOT_FOUND without room."""
    rows = table.resolve(keys, np.zeros(len(keys), np.int64))
    known = np.flatnonzero(rows != NOT_FOUND)
    table.seen[rows[known]] = seen[known]
    new = np.flatnonzero(rows == NOT_FOUND)
    if len(new):
        placed = table.place(keys[new], seen[new])
        rows[new[: len(placed)]] = placed
        if len(placed) < len(new):
            log.warning(
                f"table {part.table}: {len(new) - len(placed):,} keys that were saved during training find no room"
                " beside those of the checkpoint: they begin anew when they are looked up"
            )
    return rows


def row_format_of(arena: Arena) -> RowFormat:
    """The format of an arena's rows."""
    return KeyedRowFormat(arena) if arena.keyed else RowFormat(arena)
