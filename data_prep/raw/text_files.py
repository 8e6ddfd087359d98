"""Text files as a ``RowFormat``: pieces of equal bytes, read as parsed blocks of rows."""

from __future__ import annotations

import zlib
from abc import abstractmethod
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass

import numpy as np

from data_prep.pieces import Block, OpenPiece, Piece, RawSource, Unit
from data_prep.preparation import Preparation, RowFormat
from data_prep.progress import ProgressBar
from data_prep.raw.text_stream import TextStream, estimated_lines, line_of
from data_prep.rows import Rows


class TextFiles(RowFormat):
    """Text, plain or compressed."""

    @abstractmethod
    def parse(self, text: np.ndarray, offset: int, piece: OpenPiece) -> Rows:
        """Rows of whole lines: ``text`` uint8, from byte ``offset`` of the source. The columns may be views of one
        buffer, valid until the next call.
        """

    @abstractmethod
    def rows_of(self, text: np.ndarray, offset: int, piece: OpenPiece) -> int:
        """How many rows ``parse`` would read."""

    def units(self, job: Preparation) -> list[Unit]:
        """Pieces of equal bytes, and whole files that are not divisible."""
        size = job.options.piece_bytes
        found = []
        for source in job.sources:
            if not source.divisible:
                found.append(Unit(source, None, source.size))
            else:
                starts = range(0, source.size, size)
                found += [Unit(source, start // size, min(size, source.size - start)) for start in starts]
        return found

    def open_pieces(self, job: Preparation, unit: Unit, done: Container[Piece]) -> Iterator[OpenPiece]:
        """Open the pieces of a unit one after the other, skipping those in ``done``."""
        size = job.options.piece_bytes
        first = unit.piece or 0
        if unit.piece is not None and (unit.source.index, first) in done:
            return
        with TextStream(unit.source, first * size) as stream:
            number = first
            while number == first or (unit.piece is None and not stream.exhausted):
                piece, stop = (unit.source.index, number), (number + 1) * size
                if piece in done:
                    for _ in stream.blocks(stop):
                        job.ranks.check()
                else:
                    yield TextPiece(
                        piece=piece, source=unit.source, stop=stop, stream=stream, parse=self.parse,
                        skips=job.options.skip_bad_rows,
                    )  # fmt: skip
                number += 1

    def count_rows(self, job: Preparation) -> list[tuple[Piece, int]]:
        """By reading all text."""

        def body(opened: OpenPiece, progress: ProgressBar) -> int:
            assert isinstance(opened, TextPiece)
            rows = 0
            for text, offset, read in opened.texts():
                rows += self.rows_of(text, offset, opened)
                progress.advance(read, 0)
            return rows

        return job.of_all_pieces("count rows", body)

    def place(self, source: RawSource, at: int) -> str:
        """The line of a byte."""
        return f"{source.path}:{line_of(source, at)}"

    def estimated_rows(self, source: RawSource) -> int:
        """From the first MiB."""
        return estimated_lines(source)


@dataclass(kw_only=True)
class TextPiece(OpenPiece):
    """A piece of text; ``parse`` makes rows of whole lines of it."""

    stop: int
    stream: TextStream
    parse: Callable[[np.ndarray, int, OpenPiece], Rows]

    def read(self) -> Iterator[Block]:
        """Block by block."""
        checksum = 0
        for text, offset, read in self.texts():
            checksum = zlib.crc32(text.data, checksum)
            yield self.parse(text, offset, self), read
        self._end(checksum)

    def texts(self) -> Iterator[tuple[np.ndarray, int, int]]:
        """(Whole lines uint8, their offset in the source, the file's own bytes read for them)."""
        position = self.stream.file_position
        for text, offset in self.stream.blocks(self.stop):
            before, position = position, self.stream.file_position
            yield text, offset, position - before

    def read_through(self) -> Iterator[int]:
        """The bytes of text."""
        checksum = 0
        for text, _ in self.stream.blocks(self.stop):
            checksum = zlib.crc32(text.data, checksum)
            yield text.size
        self._end(checksum)

    def _end(self, checksum: int) -> None:
        """CRC-32 detects a changed or damaged file at half the cost of SHA-256."""
        self.digest = f"{checksum:08x}"
        self.last = self.stream.exhausted or (self.stop >= self.source.size and self.source.divisible)
