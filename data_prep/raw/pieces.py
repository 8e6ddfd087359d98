"""Pieces of text files, read as parsed blocks of rows."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass, field

import numpy as np

from data_prep.preparation import Piece, Preparation, RawSource, Rows, Unit
from data_prep.progress import ProgressBar
from data_prep.ranks import BadRowError
from data_prep.raw.text_stream import TextStream, line_of


def units(job: Preparation) -> list[Unit]:
    """All units of the job, in input order."""
    size = job.options.piece_bytes
    found = []
    for source in job.sources:
        if not source.divisible:
            found.append(Unit(source, None, source.size))
        else:
            starts = range(0, source.size, size)
            found += [Unit(source, start // size, min(size, source.size - start)) for start in starts]
    return found


@dataclass(kw_only=True)
class TextPiece:
    """A piece of text being read, an ``OpenPiece``; ``parse`` makes rows of whole lines of it."""

    piece: Piece
    stop: int
    stream: TextStream
    source: RawSource
    parse: Parse
    skips: bool = False  # bad rows
    skipped: dict[str, list[int]] = field(default_factory=dict)
    checksum: int = 0

    def blocks(self) -> Iterator[tuple[Rows, int]]:
        """(Rows that start in this piece, the file's own bytes read for them), block by block; BadRowError at the first
        bad row unless skipped. The columns are views of one buffer, valid until the next block.
        """
        for text, offset, read in self.texts():
            self.checksum = zlib.crc32(text.data, self.checksum)
            yield self.parse(text, offset, self), read

    def texts(self) -> Iterator[tuple[np.ndarray, int, int]]:
        """(Whole lines uint8, their offset in the source, the file's own bytes read for them)."""
        position = self.stream.file_position
        for text, offset in self.stream.blocks(self.stop):
            before, position = position, self.stream.file_position
            yield text, offset, position - before

    def read_through(self) -> Iterator[int]:
        """As ``blocks`` without parsing: the bytes of text read."""
        for text, _ in self.stream.blocks(self.stop):
            self.checksum = zlib.crc32(text.data, self.checksum)
            yield text.size

    def refuse(self, offset: int, reason: str, found: str) -> None:
        """A bad row at byte ``offset``: BadRowError, or a note that it is skipped."""
        if not self.skips:
            place = self.source.index, offset
            raise BadRowError(f"{self.source.path}:{line_of(self.source, offset)}: {found}", place)
        self.skipped.setdefault(reason, [0, offset])[0] += 1

    @property
    def digest(self) -> str:
        """The CRC-32 of the text so far: it detects a changed or damaged file at half the cost of SHA-256."""
        return f"{self.checksum:08x}"

    @property
    def last(self) -> bool:
        """Whether the source ends with this piece."""
        return self.stream.exhausted or (self.stop >= self.source.size and self.source.divisible)


Parse = Callable[[np.ndarray, int, TextPiece], Rows]  # text uint8 of whole rows, its offset in the source, their piece


def count_all_rows(
    job: Preparation, parse: Parse, rows_of: Callable[[np.ndarray, int, TextPiece], int]
) -> list[tuple[Piece, int]]:
    """All pieces of the job, in input order, and how many rows each has, as ``rows_of`` counts what ``parse`` would
    read. Every rank calls it.
    """

    def body() -> list[tuple[Piece, int]]:
        mine, found = job.deal(), []
        with ProgressBar(job.ranks, "count rows", sum(unit.bytes for unit in mine), "B") as progress:
            for unit in mine:
                for opened in open_pieces(job, unit, (), parse):
                    rows = 0
                    for text, offset, read in opened.texts():
                        rows += rows_of(text, offset, opened)
                        progress.advance(read, 0)
                    found.append((opened.piece, rows))
        return found

    return sorted(pair for some in job.ranks.allgather(job.ranks.together(body)) for pair in some)


def open_pieces(job: Preparation, unit: Unit, done: Container[Piece], parse: Parse) -> Iterator[TextPiece]:
    """Open the pieces of a unit one after the other, skipping those in ``done``."""
    size = job.options.piece_bytes
    first = unit.piece or 0
    if unit.piece is not None and (unit.source.index, first) in done:
        return
    with TextStream(unit.source, first * size) as stream:
        number = first
        while number == first or (unit.piece is None and not stream.exhausted):
            piece = (unit.source.index, number)
            opened = TextPiece(
                piece=piece,
                stop=(number + 1) * size,
                stream=stream,
                source=unit.source,
                parse=parse,
                skips=job.options.skip_bad_rows,
            )
            if piece in done:
                for _ in stream.blocks(opened.stop):
                    job.ranks.check()
            else:
                yield opened
            number += 1
