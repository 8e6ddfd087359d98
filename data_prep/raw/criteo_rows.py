"""Criteo's rows as a ``RowFormat``: text pieces read by the compiled parser."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterator, Mapping
from typing import Any

import numpy as np

from data_prep.options import TRANSFORM
from data_prep.preparation import OpenPiece, Piece, Preparation, RawSource, RowFormat, Rows, Unit
from data_prep.ranks import BadRowError
from data_prep.raw.diagnosis import FIELDS, diagnose, shorten
from data_prep.raw.fields import Integer
from data_prep.raw.parser import ParsedRows, count_rows, logarithms, parse, room_for, row_end
from data_prep.raw.pieces import TextPiece, count_all_rows, open_pieces, units
from data_prep.raw.sources import TextStream, estimated_lines, line_of, mark_size
from ssmpi.data.features import CRITEO
from ssmpi.runtime.errors import DataError


class BlockParser:
    """Parses blocks of raw text into columns that it reuses."""

    def __init__(self, labelled: bool) -> None:
        self._labelled, self._room = labelled, room_for(0)

    def __call__(self, text: np.ndarray, offset: int, piece: TextPiece) -> ParsedRows:
        """Parse whole rows: ``text`` uint8, from byte ``offset`` of the source."""
        mark = mark_size(text, offset)
        text, offset = text[mark:], offset + mark
        needed = count_rows(text)
        if self._room.rows < needed:
            self._room = room_for(needed + needed // 8)
        out = self._room
        row = 0
        at: Integer = 0
        while at < text.size:
            row, at, good = parse(text, at, row, self._labelled, out)
            if not good:
                end = row_end(text, at)
                finding = diagnose(bytes(text[at:end]), self._labelled)
                assert finding is not None, f"parser and diagnosis disagree about {bytes(text[at:end])!r}"
                piece.refuse(int(offset + at), *finding)
                at = end + 1
        return out.head(row)


class CriteoFormat(RowFormat):
    """Raw text of Criteo, plain or gzip, labelled or not."""

    features = CRITEO
    transform = TRANSFORM

    def __init__(self, labelled: bool) -> None:
        self._parse = BlockParser(labelled)

    def units(self, job: Preparation) -> list[Unit]:
        """Pieces of equal bytes, and whole gzip files."""
        return units(job)

    def open_pieces(self, job: Preparation, unit: Unit, done: Container[Piece]) -> Iterator[OpenPiece]:
        """Open the pieces of a unit."""
        return open_pieces(job, unit, done, self._parse)

    def count_rows(self, job: Preparation) -> list[tuple[Piece, int]]:
        """A row is a line."""
        return count_all_rows(job, self._parse, lambda text, offset, piece: count_rows(text))

    def place(self, source: RawSource, at: int) -> str:
        """The line of a byte."""
        return f"{source.path}:{line_of(source, at)}"

    def estimated_rows(self, source: RawSource) -> int:
        """From the first MiB."""
        return estimated_lines(source)

    def awaits(self, *, fitting: bool) -> list[str]:
        """The vocabulary."""
        return ["the vocabulary"] * fitting

    def dense_values(self, rows: Rows, fitted: Mapping[str, Any]) -> np.ndarray:
        """The logarithms of the integers."""
        assert isinstance(rows, ParsedRows)
        return logarithms(rows.integers)


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
