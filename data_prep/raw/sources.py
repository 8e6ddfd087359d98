"""The raw files, their order, and their text in blocks of whole rows from any byte on.

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

from data_prep.preparation import DAY_NAME, RawSource
from data_prep.ranks import RawDataError
from data_prep.raw.other_formats import binary_format
from data_prep.raw.quotes import row_ends
from ssmpi.runtime.errors import DataError, UserError
from ssmpi.runtime.files import atomic_file

BLOCK_BYTES = 2 << 20
SAMPLE_BYTES = 1 << 20
MAX_ROW_BYTES = 1 << 20
CHANGED = "{}: changed since the job began; start again when no other program writes to it"
STEP_BYTES = 1 << 16
NEWLINE = 10
PARQUET = b"PAR1"
MAGICS = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}


def open_sources(paths: Sequence[Path], multiline: str = "") -> list[RawSource]:
    """Check the raw files and sort day files by day; DataError names an invalid path. ``multiline``: see
    ``RawSource``.
    """
    _refuse_twice(paths)
    days = [DAY_NAME.search(p.name) for p in paths]
    if all(days):
        paths = [p for _, p in sorted((int(d[1]), p) for d, p in zip(days, paths, strict=True) if d)]
    return [_open(path, index, multiline) for index, path in enumerate(paths)]


def _refuse_twice(paths: Sequence[Path]) -> None:
    """DataError for a file that is given twice: by another path or link, or once plain and once as gzip."""
    given: dict[object, Path] = {}
    for path in paths:
        names: list[object] = [os.path.realpath(path).removesuffix(".gz")]
        if path.is_file():
            names.append((path.stat().st_dev, path.stat().st_ino))
        for name in names:
            if name in given:
                raise DataError(f"{path}: given twice, also as {given[name]}; give each file once, plain or as gzip")
        given |= dict.fromkeys(names, path)


def _open(path: Path, index: int, multiline: str) -> RawSource:
    if not path.exists():
        raise DataError(f"{path}: no such file; check the path")
    if not path.is_file():
        raise DataError(f"{path}: is a pipe or a device, which cannot be read twice; save its text to a file first")
    facts = path.stat()
    if facts.st_size == 0:
        raise DataError(f"{path}:1: the file is empty (0 bytes); fetch it again or leave it out")
    with path.open("rb") as file:
        start = file.read(4)
    compression = next((name for magic, name in MAGICS.items() if start.startswith(magic)), "")
    source = RawSource(path, index, facts.st_size, facts.st_mtime_ns, compression, multiline)
    _refuse_other_formats(source)
    return source


def _refuse_other_formats(source: RawSource) -> None:
    """DataError for a file that is neither UTF-8 text in lines nor Parquet, also if it is so after decompression."""
    path = source.path
    with path.open("rb") as raw, _text_of(source, raw) as file:
        start, _ = _read_some(file, MAX_ROW_BYTES)
    if start[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        raise DataError(f"{path}:1: is UTF-16 text; convert it with iconv -f UTF-16 -t UTF-8")
    packed = f" compressed with {source.compression}" * bool(source.compression)
    if start.startswith(PARQUET):
        if packed:
            raise DataError(f"{path}: is a Parquet file{packed}; unpack it: Parquet compresses its columns itself")
    elif other := binary_format(start):
        raise DataError(f"{path}: is {other}")
    elif b"\r" in start and b"\n" not in start:
        raise DataError(
            f"{path}:1: its lines end in CR alone; convert them: tr '\\r' '\\n' < {path.name} > converted.csv"
        )


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
        self._file = _text_of(source, self._raw)
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
        text, self._damage = _read_some(self._file, len(room))
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


def _text_of(source: RawSource, raw: BinaryIO) -> BinaryIO | gzip.GzipFile | _Zstandard:
    """The text of a source, decompressed, from its file."""
    if source.compression == "zstd":
        return _Zstandard(source.path, raw)
    return gzip.GzipFile(fileobj=raw) if source.compression else raw


def _read_some(file: BinaryIO | gzip.GzipFile | _Zstandard, wanted: int) -> tuple[bytes, Exception | None]:
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
    with source.path.open("rb") as raw, _text_of(source, raw) as file:
        while left > 0:
            text, _ = _read_some(file, min(left, BLOCK_BYTES))
            if not text:
                break
            lines += text.count(b"\n")
            left -= len(text)
    return lines


def estimated_lines(source: RawSource) -> int:
    """The estimated number of lines of a raw file, from its first MiB of text."""
    with source.path.open("rb") as raw, _text_of(source, raw) as file:
        text, damage = _read_some(file, SAMPLE_BYTES)
        if damage:
            return 0  # pass 1 reports where
        used = raw.tell() if len(text) == SAMPLE_BYTES else source.size
    return max(1, round(text.count(b"\n") * source.size / used))


class TextDigest:
    """The CRC-32 of a piece's text: detects a changed or damaged file at half the cost of SHA-256."""

    def __init__(self) -> None:
        self._sum = 0

    def update(self, text: np.ndarray) -> None:
        """Add text uint8."""
        self._sum = zlib.crc32(text.data, self._sum)

    def hexdigest(self) -> str:
        """The checksum so far, eight hexadecimal digits."""
        return f"{self._sum:08x}"


def whole_digest(digests: Sequence[str]) -> str:
    """A file's checksum: SHA-256 over the ``TextDigest`` of each piece, so that ranks can share the work."""
    return hashlib.sha256("".join(digests).encode()).hexdigest()
