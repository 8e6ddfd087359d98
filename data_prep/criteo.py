"""``ssmpi-prepare criteo``: Criteo's raw click logs as one more format of tables, with a parser of its own.

Also the entry point for programs: ``encode`` turns raw files into blocks of arrays with a saved vocabulary.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from data_prep.options import TRANSFORM, PrepareOptions
from data_prep.passes import open_job, run
from data_prep.pieces import DAY_NAME, OpenPiece, RawSource
from data_prep.progress import say
from data_prep.ranks import BadRowError, Ranks
from data_prep.raw.parser import (
    DENSE_FEATURES,
    DENSE_NAMES,
    INT64_MAX,
    SPARSE_FEATURES,
    SPARSE_NAMES,
    CriteoRows,
    Integer,
    count_rows,
    first_rows,
    logarithms,
    parse,
    room_for,
    row_end,
)
from data_prep.raw.sources import open_sources
from data_prep.raw.text_files import TextFiles, TextPiece
from data_prep.raw.text_stream import TextStream, mark_size, shorten
from data_prep.rows import Rows
from data_prep.vocabulary.encoding import in_memory
from data_prep.vocabulary.vocabulary_file import Vocabulary, reusable_vocabulary
from ssmpi.data.features import CRITEO
from ssmpi.data.schema import DatasetManifest
from ssmpi.runtime.errors import DataError

FIELDS = {True: 1 + DENSE_FEATURES + SPARSE_FEATURES, False: DENSE_FEATURES + SPARSE_FEATURES}


def prepare(raw: Sequence[Path], options: PrepareOptions, ranks: Ranks) -> DatasetManifest:
    """Prepare raw files into ``options.output``; resumes an interrupted run of the same arguments and files.

    Every rank of the job calls it. Raises DataError, on all ranks, for invalid input.
    """

    def open_format(sources: list[RawSource], options: PrepareOptions) -> CriteoFormat:
        labelled = ranks.first(lambda: have_labels(sources, options.skip_bad_rows))
        days = len(sources) > 1 and all(DAY_NAME.search(source.name) for source in sources)
        found = CriteoFormat(labelled, days)
        kind, _ = found.chosen_split(options)
        if not labelled and kind != "none":
            say(ranks, f"note: the files have no labels; split {kind!r} is made all the same")
        return found

    return run(open_job(raw, options, ranks, open_format, check_vocabulary))


def encode(
    raw_paths: Sequence[Path | str], vocabulary_file: Path | str
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray | None]]:
    """Encode raw files, labelled or not, with a saved vocabulary, in order, block by block.

    Yields (ids int32 (n, 26), dense float32 (n, 13), label uint8 (n,) or None for unlabelled files); n varies.
    ``vocabulary_file`` may be a prepared folder. Raises DataError at the first bad row, naming file and line.
    """
    encoder = in_memory(reusable_vocabulary(Path(vocabulary_file)))
    sources = open_sources([Path(path) for path in raw_paths])
    of = CriteoFormat(have_labels(sources, skip_bad_rows=False), days=False)
    for source in sources:
        with TextStream(source) as stream:
            piece = TextPiece(piece=(source.index, 0), source=source, stop=1 << 62, stream=stream, parse=of.parse)
            for text, offset in stream.blocks(piece.stop):
                rows = of.parse(text, offset, piece)
                ids = np.ascontiguousarray(encoder.ids(rows).T)
                yield ids, logarithms(rows.dense.T), rows.label.copy() if of.labelled else None


def check_vocabulary(vocabulary: Vocabulary) -> None:
    """DataError if a vocabulary is not one of Criteo's rows."""
    if "features" in vocabulary.about:
        raise DataError(
            f"{vocabulary.path}: of a table's columns, not of Criteo's rows; use it with 'ssmpi-prepare table'"
        )


class CriteoFormat(TextFiles):
    """Raw text of Criteo, plain or gzip, labelled or not. Blocks are parsed into columns that are used again."""

    features = CRITEO
    transform = TRANSFORM
    min_counts = hash_ranges = (0,) * SPARSE_FEATURES
    hashes = (False,) * SPARSE_FEATURES

    def __init__(self, labelled: bool, days: bool) -> None:
        self.labelled, self._days, self._room = labelled, days, room_for(0)

    def chosen_split(self, options: PrepareOptions) -> tuple[str, str]:
        """As given, else by labels and day files."""
        kind = options.split
        if kind is None:
            if not self.labelled or options.vocabulary is not None:
                kind = "none"
            else:
                kind = "days" if self._days else "kaggle"
        new = not self.labelled or (options.split is None and options.vocabulary is not None)
        return kind, options.split_name or ("test" if new else "train")

    def parse(self, text: np.ndarray, offset: int, piece: OpenPiece) -> CriteoRows:
        """Views of one buffer."""
        mark = mark_size(text, offset)
        text, offset = text[mark:], offset + mark
        needed = count_rows(text)
        if len(self._room.label) < needed:
            self._room = room_for(needed + needed // 8)
        row = 0
        at: Integer = 0
        while at < text.size:
            row, at, good = parse(text, at, row, self.labelled, self._room)
            if not good:
                end = row_end(text, at)
                finding = diagnose(bytes(text[at:end]), self.labelled)
                assert finding is not None, f"parser and diagnosis disagree about {bytes(text[at:end])!r}"
                self.refuse(piece, int(offset + at), *finding)
                at = end + 1
        return first_rows(self._room, row)

    def rows_of(self, text: np.ndarray, offset: int, piece: OpenPiece) -> int:
        """A row is a line."""
        return count_rows(text)

    def awaits(self, *, fitting: bool) -> list[str]:
        """The vocabulary."""
        return ["the vocabulary"] * fitting

    def packed(self, rows: Rows, fitted: Mapping[str, Any]) -> np.ndarray:
        """The integers; ``unpack`` takes their logarithms."""
        return rows.dense.T


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


def diagnose(row: bytes, labelled: bool) -> tuple[str, str] | None:
    """The problem of one row (without its newline): (reason, what was found and the remedy); None if it is valid."""
    fields = row.removesuffix(b"\r").split(b"\t")
    wanted = FIELDS[labelled]
    kind = "labelled" if labelled else "unlabelled"
    if b"\x00" in row:
        return "NUL byte", f"a NUL byte in {shorten(row)}; the file is damaged or not plain text, fetch it again"
    if len(fields) != wanted:
        reason = "too few fields" if len(fields) < wanted else "too many fields"
        hint = "repair or remove the row"
        if len(fields) == FIELDS[not labelled]:
            hint = "labelled and unlabelled rows cannot be mixed: prepare them apart"
        return reason, f"{len(fields)} fields, expected {wanted} ({kind}) in {shorten(row)}; {hint}"
    if labelled and fields[0] not in (b"0", b"1"):
        return "label", f"label {shorten(fields[0])} is not 0 or 1; repair or remove the row"
    first = 1 if labelled else 0
    for name, field in zip(DENSE_NAMES, fields[first:], strict=False):
        if field and not re.fullmatch(rb"-?[0-9]+", field):
            return "integer", f"{name} is {shorten(field)}, not an integer; repair or remove the row"
        digits = field.lstrip(b"-").lstrip(b"0")
        if len(digits) > 19 or int(digits or b"0") > INT64_MAX:
            return "integer range", f"{name} is {shorten(field)}, beyond 64 bits; repair or remove the row"
    for name, field in zip(SPARSE_NAMES, fields[first + DENSE_FEATURES :], strict=True):
        if not re.fullmatch(rb"[0-9a-fA-F]*", field):
            return "token", f"{name} is {shorten(field)}, not a hexadecimal token; repair or remove the row"
        if len(field) > 8:
            return (
                "token length",
                f"{name} is {shorten(field)}, {len(field)} digits, at most 8; repair or remove the row",
            )
    return None
