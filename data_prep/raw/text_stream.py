"""The text of one raw file, in blocks of whole rows from any byte on, and where its rows end.

Plain files are split into pieces of equal bytes that any rank can read. Compressed files have no random access, and
where values may hold newlines only the text before says where a row ends: both are streamed from the start. A row
belongs to the piece in which it starts.
"""

from __future__ import annotations

import codecs
import gzip
import hashlib
import io
import os
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np

from data_prep.pieces import RawSource
from data_prep.ranks import RawDataError
from ssmpi.runtime.compiled.jit import njit
from ssmpi.runtime.errors import UserError
from ssmpi.runtime.files import atomic_file

BLOCK_BYTES = 2 << 20
SAMPLE_BYTES = 1 << 20
MAX_ROW_BYTES = 1 << 20
CHANGED = "{}: changed since the job began; start again when no other program writes to it"
STEP_BYTES = 1 << 16
QUOTE, NEWLINE = ord('"'), ord("\n")
BEGINS, GOES_ON, QUOTED = 0, 1, 2  # states of a value


def shorten(content: bytes) -> str:
    """A readable representation of raw bytes for a message, of bounded length."""
    text = content.decode("utf-8", "backslashreplace")
    return repr(text if len(text) <= 60 else text[:40] + "..." + text[-12:])


def mark_size(text: np.ndarray, offset: int) -> int:
    """Bytes of the UTF-8 byte order mark that the text uint8 from byte ``offset`` of a source begins with."""
    return 3 if offset == 0 and bytes(text[:3]) == codecs.BOM_UTF8 else 0


class TextStream:
    """The text of one source from byte ``start`` on, in blocks of whole rows.

    Starting inside a row skips the rest of it, which belongs to the previous piece. ``offset`` counts bytes of
    (decompressed) text. DataError for a damaged gzip file, for a "row" of more than 1 MiB, or if the file has another
    size than when the job began.
    """

    def __init__(self, source: RawSource, start: int = 0) -> None:
        self._source = source
        self._raw: BinaryIO = source.path.open("rb")
        if os.fstat(self._raw.fileno()).st_size != source.size:
            self._raw.close()
            raise RawDataError(CHANGED.format(source.path))
        self._file = text_of(source, self._raw)
        self._buffer = bytearray(BLOCK_BYTES + MAX_ROW_BYTES + 2 * STEP_BYTES)
        self._begin = self._end = 0  # the range of the buffer with text not yet returned
        self._damage: Exception | None = None
        self._ended = False
        self.offset = start
        if start:
            self._file.seek(start - 1)
            self.offset = start - 1
            self._consume(self._row_end(0))

    def __enter__(self) -> TextStream:
        return self

    def __exit__(self, *unused: object) -> None:
        self._file.close()
        self._raw.close()

    @property
    def exhausted(self) -> bool:
        """Whether there are no more rows."""
        if self._begin == self._end and not self._ended:
            self._read()
        return self._ended and self._begin == self._end

    @property
    def file_position(self) -> int:
        """The read position in the file's own (compressed) bytes."""
        return self._raw.tell()

    def blocks(self, stop: int) -> Iterator[tuple[np.ndarray, int]]:
        """Yield (uint8 text of whole rows, newline-ended; its offset): all rows that start before ``stop``.

        A block is a view of one buffer, valid until the next block.
        """
        while self.offset < stop and not self.exhausted:
            limit = min(stop - self.offset, BLOCK_BYTES)
            while self._end - self._begin < limit and not self._ended:
                self._read(limit - (self._end - self._begin))
            size = self._row_end(min(limit, self._end - self._begin) - 1)
            yield np.frombuffer(self._buffer, dtype=np.uint8, count=size, offset=self._begin), self.offset
            self._consume(size)

    def _row_end(self, position: int) -> int:
        """The end (after the newline) of the row that holds the byte at ``position``; reads on as needed."""
        while True:
            start, end = self._row(position)
            if end:
                return end
            if self._ended:
                return self._end - self._begin
            if self._end - self._begin - position > MAX_ROW_BYTES:
                why = "this is not a raw text file with one row per line"
                if self._source.multiline:
                    why = 'close its quote, or write quoting = "none" in [table] of the schema if quotes are no quoting'
                raise RawDataError(
                    f"{self._source.path}:{line_of(self._source, self.offset + start)}: no end of row within "
                    f"{MAX_ROW_BYTES:,} bytes; {why}"
                )
            self._read()

    def _row(self, position: int) -> tuple[int, int]:
        """Where the row that holds the byte at ``position`` begins, or ``position``, and its end; 0 if that is not read
        yet.
        """
        if not self._source.multiline:
            return position, max(0, self._buffer.find(b"\n", self._begin + position, self._end) + 1 - self._begin)
        text = np.frombuffer(self._buffer, dtype=np.uint8, count=self._end - self._begin, offset=self._begin)
        ends = np.concatenate([[0], row_ends(text, ord(self._source.multiline))[0], [0]])
        at = np.searchsorted(ends[:-1], position, side="right")
        return int(ends[at - 1]), int(ends[at])

    def _consume(self, count: int) -> None:
        self._begin += count
        self.offset += count

    def _read(self, wanted: int = STEP_BYTES) -> None:
        if self._end + wanted >= len(self._buffer):  # one byte is reserved for a missing last newline
            left = self._end - self._begin
            self._buffer[:left] = self._buffer[self._begin : self._end]
            self._begin, self._end = 0, left
        with atomic_file.naming(self._source.path):
            count = self._read_into(memoryview(self._buffer)[self._end : self._end + wanted])
        self._end += count
        if count == 0:
            if self._damage:
                self._fail()
            self._ended = True
            if self._begin < self._end and self._buffer[self._end - 1] != NEWLINE:
                self._buffer[self._end] = NEWLINE
                self._end += 1

    def _read_into(self, room: memoryview) -> int:
        if self._source.divisible:
            return self._file.readinto(room)  # type: ignore[union-attr]
        if self._damage:
            return 0
        text, self._damage = read_some(self._file, len(room))
        room[: len(text)] = text
        return len(text)

    def _fail(self) -> None:
        offset = self.offset + self._end - self._begin
        raise RawDataError(
            f"{self._source.path}:{line_of(self._source, offset)}: damaged or truncated "
            f"{self._source.compression} after {offset:,} bytes of text ({self._damage}); fetch the file again"
        )


class _Zstandard(io.RawIOBase):
    """The text of a zstd file, decompressed by pyarrow."""

    def __init__(self, path: Path, raw: BinaryIO) -> None:
        try:
            import pyarrow as pa
        except ImportError as error:
            raise UserError(
                f"{path}: reading zstd files needs pyarrow, which is not installed: pip install 'ssmpi[tables]'"
            ) from error
        self._stream = pa.CompressedInputStream(raw, "zstd")

    def read1(self, count: int) -> bytes:
        """Up to ``count`` bytes."""
        try:
            text: bytes = self._stream.read(count)
        except OSError as error:
            raise zlib.error(str(error)) from error
        return text


def text_of(source: RawSource, raw: BinaryIO) -> BinaryIO | gzip.GzipFile | _Zstandard:
    """The text of a source, decompressed, from its file."""
    if source.compression == "zstd":
        return _Zstandard(source.path, raw)
    return gzip.GzipFile(fileobj=raw) if source.compression else raw


def read_some(file: BinaryIO | gzip.GzipFile | _Zstandard, wanted: int) -> tuple[bytes, Exception | None]:
    """Up to ``wanted`` bytes, and the error that ended a damaged gzip file early; the bytes before it are returned."""
    if not isinstance(file, gzip.GzipFile | _Zstandard):
        return file.read(wanted), None
    parts, left = [], wanted
    try:
        while left > 0 and (part := file.read1(left)):
            parts.append(part)
            left -= len(part)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        return b"".join(parts), error
    return b"".join(parts), None


def line_of(source: RawSource, offset: int) -> int:
    """The 1-based line of the byte at ``offset`` of the text, by counting, as far as the file can be read."""
    lines, left = 1, offset
    with source.path.open("rb") as raw, text_of(source, raw) as file:
        while left > 0:
            text, _ = read_some(file, min(left, BLOCK_BYTES))
            if not text:
                break
            lines += text.count(b"\n")
            left -= len(text)
    return lines


def estimated_lines(source: RawSource) -> int:
    """The estimated number of lines of a raw file, from its first MiB of text."""
    with source.path.open("rb") as raw, text_of(source, raw) as file:
        text, damage = read_some(file, SAMPLE_BYTES)
        if damage:
            return 0  # pass 1 reports where
        used = raw.tell() if len(text) == SAMPLE_BYTES else source.size
    return max(1, round(text.count(b"\n") * source.size / used))


def whole_digest(digests: Sequence[str]) -> str:
    """A file's checksum: SHA-256 over the checksum of each piece, so that ranks can share the work."""
    return hashlib.sha256("".join(digests).encode()).hexdigest()


@njit(cache=True, nogil=True)
def row_ends(text: np.ndarray, separator: int) -> tuple[np.ndarray, bool]:
    """The ends of the rows of ``text`` uint8, which begins with one, int64 (ends,): behind each newline outside quoted
    values; and whether the text ends inside one. As in pyarrow, a quote opens where a value begins, and "" is a quote.
    """
    ends = np.empty(np.count_nonzero(text == NEWLINE), dtype=np.int64)
    rows, state, at = 0, BEGINS, 0
    while at < text.size:
        byte = text[at]
        if state == QUOTED:
            if byte == QUOTE:
                if at + 1 < text.size and text[at + 1] == QUOTE:
                    at += 1
                else:
                    state = GOES_ON
        elif byte == NEWLINE:
            ends[rows] = at + 1
            rows, state = rows + 1, BEGINS
        elif byte == separator:
            state = BEGINS
        else:
            state = QUOTED if byte == QUOTE and state == BEGINS else GOES_ON
        at += 1
    return ends[:rows], state == QUOTED
