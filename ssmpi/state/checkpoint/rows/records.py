"""The file in which one embedding PS saves its rows during training: a base with all rows, followed by increments with
some rows each. Little-endian, one record after the other::

    header  136 bytes: see ``RecordHeader``
    rows    base:      (optimizer state, weights) of every row in order, float32; weights of 16 bits two a word
            increment: (row int32, optimizer state, weights) of each of its rows, in ascending order of row

A record is valid if its SHA-256 over header and rows matches. The base is renamed into place when complete; anything
after an invalid record is ignored.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np

from ssmpi.runtime.errors import DataError
from ssmpi.state.checkpoint import disk

MAGIC = b"SSMPIR03"  # with the version of the format
PIECE = 1 << 22  # bytes, about, that are read or written at a time
DIGEST = 32
UNKNOWN = -1  # accesses


@dataclass(frozen=True)
class RecordHeader:
    """The header of a record. ``samples`` of all trainers had been trained on when it was started, an estimate, and the
    PS had last copied its rows for checkpoint number ``checkpoint``, which orders records and checkpoints exactly;
    ``layout`` is a digest of which rows of which tables the PS holds; ``width`` is the words of a row with its state,
    ``count`` the number of rows. ``left`` is the number of accesses of other rows that no record covers, ``UNKNOWN`` if
    they are not counted. PLS counts increments that together stand for a save of all rows as one: ``covered`` are the
    samples of the last such save, ``share`` what the increments after it come to.
    """

    increment: bool
    width: int
    timeline: int
    samples: int
    count: int
    layout: bytes
    left: int = 0
    covered: int = 0
    share: float = 0.0
    checkpoint: int = 0
    digest: bytes = bytes(DIGEST)

    FORMAT: ClassVar[struct.Struct] = struct.Struct(f"<8sIIqqqqqdq{DIGEST}s{DIGEST}s")

    def packed(self) -> bytes:
        """The header as bytes."""
        return self.FORMAT.pack(
            MAGIC, self.increment, self.width, self.timeline, self.samples, self.count, self.left, self.covered,
            self.share, self.checkpoint, self.layout, self.digest,
        )  # fmt: skip

    @classmethod
    def unpacked(cls, content: bytes) -> RecordHeader | None:
        """The header in ``content``; None if it is not valid."""
        if len(content) != cls.FORMAT.size:
            return None
        magic, increment, width, timeline, samples, count, left, covered, share, checkpoint, layout, digest = (
            cls.FORMAT.unpack(content)
        )
        if magic != MAGIC or increment > 1 or width == 0 or count < 0:
            return None
        return cls(bool(increment), width, timeline, samples, count, layout, left, covered, share, checkpoint, digest)

    @property
    def words(self) -> int:
        """32-bit words of each of its rows, including the row number in increments."""
        return self.width + self.increment

    @property
    def bytes(self) -> int:
        """Size of the whole record."""
        return self.FORMAT.size + 4 * self.words * self.count

    def pieces(self) -> Iterator[slice]:
        """Its rows, ``PIECE`` at a time."""
        step = max(1, PIECE // (4 * self.words))
        return (slice(start, min(start + step, self.count)) for start in range(0, self.count, step))


def write_record(descriptor: int, offset: int, header: RecordHeader, rows: Iterable[np.ndarray]) -> None:
    """Write a record at ``offset`` of an open file and sync it: first ``rows`` int32 (n, words), then the header, which
    makes them valid.
    """
    digest, at = hashlib.sha256(header.packed()), offset + header.FORMAT.size
    for words in rows:
        content = words.reshape(-1).view(np.uint8).data
        disk.write_at(descriptor, content, at)
        digest.update(content)
        at += len(content)
    assert at == offset + header.bytes, "the rows of a record are not as many as its header says"
    disk.write_at(descriptor, memoryview(replace(header, digest=digest.digest()).packed()), offset)
    disk.sync(descriptor)


@dataclass(frozen=True)
class RowRecord:
    """A valid record in a file: its offset, and for an increment its ``rows`` int32 (count,)."""

    header: RecordHeader
    offset: int
    rows: np.ndarray

    @property
    def end(self) -> int:
        """The offset of the next record."""
        return self.offset + self.header.bytes

    def read(self, descriptor: int, rows: slice) -> np.ndarray:
        """Some of its rows, int32 (n, words)."""
        found = np.empty((rows.stop - rows.start, self.header.words), np.int32)
        start = self.offset + self.header.FORMAT.size + 4 * self.header.words * rows.start
        if _read(descriptor, found, start) != found.nbytes:
            raise OSError("it has become shorter")
        return found


def read_record(descriptor: int, offset: int) -> RowRecord | None:
    """The record at ``offset`` of an open file; None if there is no valid one."""
    header = RecordHeader.unpacked(os.pread(descriptor, RecordHeader.FORMAT.size, offset))
    if header is None or offset + header.bytes > os.fstat(descriptor).st_size:
        return None
    digest = hashlib.sha256(replace(header, digest=bytes(DIGEST)).packed())
    record = RowRecord(header, offset, np.empty(header.count if header.increment else 0, np.int32))
    for piece in header.pieces():
        words = record.read(descriptor, piece)
        digest.update(words.reshape(-1).view(np.uint8).data)
        if header.increment:
            record.rows[piece] = words[:, 0]
    return record if digest.digest() == header.digest else None


@dataclass(frozen=True)
class SavedRows:
    """The saved rows of one PS: the newest save of each. ``records`` are the base and the valid increments."""

    path: Path
    records: tuple[RowRecord, ...]

    @property
    def base(self) -> RowRecord:
        """The record that holds all rows."""
        return self.records[0]

    @property
    def end(self) -> int:
        """The valid length of the file in bytes."""
        return self.records[-1].end

    @property
    def newest(self) -> RecordHeader:
        """The header of the record that was written last."""
        return self.records[-1].header

    @property
    def unsaved(self) -> tuple[float, int]:
        """How many accesses no record covered when the last one was written, NaN if they are not counted (``ssu``,
        ``scar``), and the number of samples at that time.
        """
        return math.nan if self.newest.left == UNKNOWN else float(self.newest.left), self.newest.samples

    def covered_after(self, checkpoint: int, samples: int) -> int:
        """``RecordHeader.covered`` if all rows are loaded from a checkpoint, by number, taken after ``samples``, and
        then the records that are newer.
        """
        headers = [record.header for record in self._records_after(checkpoint)]
        return max([samples, *(each.samples for each in headers if each.samples == each.covered)])

    def merged(self) -> Iterator[tuple[slice, np.ndarray]]:
        """All rows in order, in pieces float32 (n, width): optimizer state, weights. DataError if the file cannot be
        read any more.
        """
        with _readable(self.path) as descriptor:
            for piece in self.base.header.pieces():
                words = self.base.read(descriptor, piece)
                for record in self.records[1:]:
                    first, last = np.searchsorted(record.rows, (piece.start, piece.stop))
                    replaced = record.read(descriptor, slice(first, last))
                    words[record.rows[first:last] - piece.start] = replaced[:, 1:]
                yield piece, words.view(np.float32)

    def records_after(self, checkpoint: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Rows int32 (n,) and words int32 (n, width) of the records that are newer than a checkpoint, by number, oldest
        first; in the base a row's number is its place. Errors as ``merged``.
        """
        with _readable(self.path) as descriptor:
            for record in self._records_after(checkpoint):
                for piece in record.header.pieces():
                    words = record.read(descriptor, piece)
                    if record.header.increment:
                        yield record.rows[piece], words[:, 1:]
                    else:
                        yield np.arange(piece.start, piece.stop, dtype=np.int32), words

    def _records_after(self, checkpoint: int) -> list[RowRecord]:
        return [record for record in self.records if record.header.checkpoint >= checkpoint]


def read_rows(path: Path) -> tuple[SavedRows, int] | None:
    """The verified contents of a file, and the number of invalid bytes at its end; None if there is no file. DataError
    if its base is damaged.
    """
    try:
        with _readable(path) as descriptor:
            base = read_record(descriptor, 0)
            if base is None or base.header.increment:
                raise DataError(
                    f"{path}: damaged: its first record, the base, is corrupt, so none of its rows can be"
                    " used; remove the file, and resume from a checkpoint"
                )
            found = [base]
            while (record := read_record(descriptor, found[-1].end)) and _continues(base.header, record.header):
                found.append(record)
            return SavedRows(path, tuple(found)), os.fstat(descriptor).st_size - found[-1].end
    except FileNotFoundError:
        return None


def _continues(base: RecordHeader, header: RecordHeader) -> bool:
    """Whether a record is an increment on ``base``."""
    return header.increment and all(
        getattr(base, name) == getattr(header, name) for name in ("timeline", "layout", "width")
    )


@contextlib.contextmanager
def _readable(path: Path) -> Iterator[int]:
    """A file opened for reading; DataError if it cannot be read."""
    try:
        with disk.opened(path) as descriptor:
            yield descriptor
    except FileNotFoundError:
        raise
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error}); look at its disk, or resume from a checkpoint") from error


def _read(descriptor: int, out: np.ndarray, offset: int) -> int:
    """Fill ``out`` from the file and return the number of bytes read."""
    content: memoryview = out.reshape(-1).view(np.uint8).data
    done = 0
    while done < len(content) and (count := os.preadv(descriptor, [content[done:]], offset + done)):
        done += count
    return done
