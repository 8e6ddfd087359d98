"""The units of work of both passes: pieces of the raw files, assigned to ranks, read as parsed blocks of rows.

Pieces do not depend on the number of ranks, so finished pieces stay valid if a job resumes with another number.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterator
from dataclasses import dataclass, field

import numpy as np

from data_prep.preparation import Preparation, RawSource
from data_prep.ranks import BadRowError
from data_prep.raw.diagnosis import FIELDS, diagnose, shorten
from data_prep.raw.fields import Integer
from data_prep.raw.parser import ParsedRows, count_rows, parse, room_for, row_end
from data_prep.raw.sources import TextDigest, TextStream, line_of
from ssmpi.core.errors import DataError

Piece = tuple[int, int]  # source, number of the piece in it


@dataclass
class SkippedRows:
    """The bad rows skipped in one piece: their number and the byte of the first, by reason."""

    reasons: dict[str, list[int]] = field(default_factory=dict)

    def note(self, reason: str, offset: int) -> None:
        """Record one skipped row."""
        self.reasons.setdefault(reason, [0, offset])[0] += 1


@dataclass(frozen=True)
class Unit:
    """The work that one rank reads in one go: a piece of a plain file, or all pieces of a gzip file (``piece``
    None).
    """

    source: RawSource
    piece: int | None
    bytes: int


def units(job: Preparation) -> list[Unit]:
    """All units of the job, in input order."""
    size = job.options.piece_bytes
    found = []
    for source in job.sources:
        if source.gzipped:
            found.append(Unit(source, None, source.size))
        else:
            starts = range(0, source.size, size)
            found += [Unit(source, start // size, min(size, source.size - start)) for start in starts]
    return found


def deal(job: Preparation) -> list[Unit]:
    """This rank's units: each unit, largest first, is assigned to the rank with the least to read."""
    loads = [0] * job.ranks.size
    mine = []
    everything = units(job)
    for i in sorted(range(len(everything)), key=lambda i: (-everything[i].bytes, i)):
        rank = loads.index(min(loads))
        loads[rank] += everything[i].bytes
        if rank == job.ranks.rank:
            mine.append(i)
    return [everything[i] for i in sorted(mine)]


@dataclass(kw_only=True)
class OpenPiece:
    """A piece being read; ``skipped`` and ``last`` are valid after ``blocks`` has been iterated to its end."""

    piece: Piece
    start: int
    stop: int
    stream: TextStream
    source: RawSource
    labelled: bool
    skipped: SkippedRows | None = None
    room: ParsedRows = field(default_factory=lambda: room_for(0))

    def blocks(self, digest: TextDigest | None = None) -> Iterator[ParsedRows]:
        """Parsed rows that start in this piece, block by block; BadRowError at the first bad one unless skipped.

        The columns are views of one buffer, valid until the next block. ``digest`` is updated with the text.
        """
        for text, offset in self.stream.blocks(self.stop):
            if digest is not None:
                digest.update(text)
            yield parse_block(text, offset, self)

    @property
    def last(self) -> bool:
        """Whether the source ends with this piece."""
        return self.stream.exhausted or (self.stop >= self.source.size and not self.source.gzipped)


def open_pieces(job: Preparation, unit: Unit, done: Container[Piece]) -> Iterator[OpenPiece]:
    """Open the pieces of a unit one after the other, skipping those in ``done``."""
    size = job.options.piece_bytes
    first = unit.piece or 0
    if unit.piece is not None and (unit.source.index, first) in done:
        return
    with TextStream(unit.source, first * size) as stream:
        number = first
        while number == first or (unit.piece is None and not stream.exhausted):
            piece = (unit.source.index, number)
            skipped = SkippedRows() if job.options.skip_bad_rows else None
            opened = OpenPiece(
                piece=piece,
                start=number * size,
                stop=(number + 1) * size,
                stream=stream,
                source=unit.source,
                labelled=job.labelled,
                skipped=skipped,
            )
            if piece in done:
                for _ in stream.blocks(opened.stop):
                    job.ranks.check()
            else:
                yield opened
            number += 1


def parse_block(text: np.ndarray, offset: int, opened: OpenPiece) -> ParsedRows:
    """Parse whole rows: ``text`` uint8, from byte ``offset`` of the source."""
    needed = count_rows(text)
    if opened.room.rows < needed:
        opened.room = room_for(needed + needed // 8)
    out = opened.room
    row = 0
    at: Integer = 0
    while at < text.size:
        row, at, good = parse(text, at, row, opened.labelled, out)
        if not good:
            end = row_end(text, at)
            finding = diagnose(bytes(text[at:end]), opened.labelled)
            assert finding is not None, f"parser and diagnosis disagree about {bytes(text[at:end])!r}"
            reason, found = finding
            if opened.skipped is None:
                source = opened.source
                raise BadRowError(f"{source.path}:{line_of(source, offset + at)}: {found}", (source.index, offset + at))
            opened.skipped.note(reason, offset + at)
            at = end + 1
    return out.head(row)


def have_labels(sources: list[RawSource], skip_bad_rows: bool) -> bool:
    """Whether the files are labelled (40 fields) or not (39), by their first rows; they must agree."""
    found = [_first_fields(source, skip_bad_rows) == FIELDS[True] for source in sources]
    if len(set(found)) > 1:
        other = sources[found.index(not found[0])]
        raise DataError(
            f"{other.path}:1: {FIELDS[not found[0]]} fields, but {sources[0].path} has {FIELDS[found[0]]}: labelled "
            "and unlabelled files cannot be mixed; prepare them apart"
        )
    return found[0]


def _first_fields(source: RawSource, skip_bad_rows: bool) -> int:
    """The fields of the first row; if bad rows are skipped, which it may be, of most rows in the first block."""
    with TextStream(source) as stream:
        line = 0
        for text, _ in stream.blocks(1 << 62):
            rows = bytes(text).split(b"\n")[:-1]
            found = Counter(row.count(b"\t") + 1 for row in (rows if skip_bad_rows else rows[:1]))
            line += len(rows)
            fields = max(FIELDS.values(), key=lambda fields: found[fields])
            if found[fields]:
                return fields
            if not skip_bad_rows:
                raise BadRowError(
                    f"{source.path}:1: {next(iter(found))} fields, expected {FIELDS[True]} (label, 13 integers, 26 "
                    f"tokens) or {FIELDS[False]} (unlabelled), with tabs between, in {shorten(rows[0])}; "
                    "is this a raw Criteo file?",
                    (source.index, 0),
                )
    raise DataError(
        f"{source.path}:{max(line, 1)}: no row with {FIELDS[True]} or {FIELDS[False]} fields in the whole file"
    )
