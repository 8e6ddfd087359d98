"""The raw files: what they are, in which order, and their text in blocks of whole rows from any byte on.

Plain files are cut into pieces of equal bytes that any rank can read; gzip files cannot be entered in the middle and
are streamed from the start. A row belongs to the piece in which it starts.
"""

from __future__ import annotations

import gzip
import hashlib
import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from ssmpi.errors import DataError

BLOCK_BYTES = 4 << 20
MAX_ROW_BYTES = 1 << 20
GZIP_MAGIC = b"\x1f\x8b"
DAY_NAME = re.compile(r"day_(\d+)(\.gz)?$")


@dataclass(frozen=True)
class Source:
    """One raw file. ``size`` and ``modified`` are the file's own (compressed) bytes and nanoseconds."""

    path: Path
    index: int
    size: int
    modified: int
    gzipped: bool

    @property
    def name(self) -> str:
        """The file name, the only part of the path that goes into outputs."""
        return self.path.name


def open_sources(paths: Sequence[Path]) -> list[Source]:
    """Check the raw files and put day files in day order; DataError names a path that cannot be taken."""
    if len({p.resolve() for p in paths}) != len(paths):
        raise DataError(f"a raw file is given twice in {', '.join(map(str, paths))}; give each file once")
    days = [DAY_NAME.search(p.name) for p in paths]
    if all(days):
        paths = [p for _, p in sorted((int(d[1]), p) for d, p in zip(days, paths, strict=True) if d)]
    return [_open(path, index) for index, path in enumerate(paths)]


def _open(path: Path, index: int) -> Source:
    if path.is_dir():
        raise DataError(f"{path}: is a directory, expected a raw file; give the files in it, e.g. {path}/day_*")
    if not path.is_file():
        raise DataError(f"{path}: no such file; check the path (raw files are train.txt or day_0 ... day_23, also .gz)")
    facts = path.stat()
    if facts.st_size == 0:
        raise DataError(f"{path}:1: the file is empty (0 bytes); fetch it again or leave it out")
    with path.open("rb") as file:
        gzipped = file.read(2) == GZIP_MAGIC
    return Source(path, index, facts.st_size, facts.st_mtime_ns, gzipped)


class TextStream:
    """The text of one source from byte ``start`` on, in blocks of whole rows.

    Starting inside a row skips the rest of it: it belongs to the piece before. ``offset`` counts bytes of
    (decompressed) text. DataError for a damaged gzip file, or for a "row" of more than 1 MiB.
    """

    def __init__(self, source: Source, start: int = 0) -> None:
        self._source = source
        self._raw: BinaryIO = source.path.open("rb")
        self._file: BinaryIO | gzip.GzipFile = gzip.GzipFile(fileobj=self._raw) if source.gzipped else self._raw
        self._text = b""
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
        """Whether no row is left."""
        if not self._text and not self._ended:
            self._read()
        return self._ended and not self._text

    @property
    def file_position(self) -> int:
        """How far the file's own (compressed) bytes have been read."""
        return self._raw.tell()

    def blocks(self, stop: int) -> Iterator[tuple[np.ndarray, int]]:
        """Yield (uint8 text of whole rows, newline-ended; its offset): all rows that start before ``stop``."""
        while self.offset < stop and not self.exhausted:
            limit = min(stop - self.offset, BLOCK_BYTES)
            while len(self._text) < limit and not self._ended:
                self._read(limit)
            end = self._row_end(min(limit, len(self._text)) - 1)
            yield np.frombuffer(self._text, dtype=np.uint8, count=end), self.offset
            self._consume(end)

    def _row_end(self, position: int) -> int:
        """The end (after the newline) of the row that holds the byte at ``position``; reads on as needed."""
        while True:
            found = self._text.find(b"\n", position)
            if found >= 0:
                return found + 1
            if self._ended:
                return len(self._text)
            if len(self._text) - position > MAX_ROW_BYTES:
                offset = self.offset + position
                raise DataError(
                    f"{self._source.path}:{line_of(self._source, offset)}: no end of row within {MAX_ROW_BYTES:,} "
                    "bytes; this is not a raw text file with one row per line"
                )
            self._read()

    def _consume(self, count: int) -> None:
        self._text = self._text[count:]
        self.offset += count

    def _read(self, wanted: int = 1 << 16) -> None:
        more, self._damage = (b"", self._damage) if self._damage else _read_some(self._file, wanted)
        if more:
            self._text += more
        elif self._damage:
            offset = self.offset + len(self._text)
            raise DataError(
                f"{self._source.path}:{line_of(self._source, offset)}: damaged or truncated gzip after {offset:,} "
                f"bytes of text ({self._damage}); fetch the file again"
            )
        else:
            self._ended = True
            if self._text and not self._text.endswith(b"\n"):
                self._text += b"\n"


def _read_some(file: BinaryIO | gzip.GzipFile, wanted: int) -> tuple[bytes, Exception | None]:
    """Up to ``wanted`` bytes, and the damage that ended a gzip file early; what comes before it is not lost."""
    if not isinstance(file, gzip.GzipFile):
        return file.read(wanted), None
    parts, left = [], wanted
    try:
        while left > 0 and (part := file.read1(left)):
            parts.append(part)
            left -= len(part)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        return b"".join(parts), error
    return b"".join(parts), None


def line_of(source: Source, offset: int) -> int:
    """The 1-based line that holds the byte at ``offset`` of the text, by counting, as far as a file can be read."""
    lines, left = 1, offset
    with gzip.open(source.path) if source.gzipped else source.path.open("rb") as file:
        while left > 0:
            text, _ = _read_some(file, min(left, BLOCK_BYTES))
            if not text:
                break
            lines += text.count(b"\n")
            left -= len(text)
    return lines


def digest(source: Source, start: int, stop: int) -> str:
    """SHA-256 of the file's own bytes ``[start, stop)``."""
    total = hashlib.sha256()
    with source.path.open("rb") as file:
        file.seek(start)
        left = min(stop, source.size) - start
        while left > 0 and (data := file.read(min(left, BLOCK_BYTES))):
            total.update(data)
            left -= len(data)
    return total.hexdigest()


def whole_digest(digests: Sequence[str]) -> str:
    """A file's checksum: SHA-256 over the digests of its pieces, so that ranks can share the reading."""
    return hashlib.sha256("".join(digests).encode()).hexdigest()
