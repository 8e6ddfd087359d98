"""Tables in text (CSV, TSV, plain or compressed) as a ``RowFormat``: pieces of text that pyarrow parses.

A row is a line, unless the schema says that quoted values may hold newlines. Blank lines are none, as for other
readers, unless there is only one column. pyarrow also finds bad rows, by bisection of the rows it refuses.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv as arrow_csv

from data_prep.pieces import OpenPiece, RawSource
from data_prep.ranks import RawDataError
from data_prep.raw.sources import text_format
from data_prep.raw.text_files import TextFiles
from data_prep.raw.text_stream import TextStream, line_of, mark_size, row_ends, shorten
from data_prep.rows import BadRows, Rows
from data_prep.table.arrow_strings import ARROW, null_where_missing
from data_prep.table.format import TableFormat, partition_columns, require_columns
from data_prep.table.row_builder import RowOrigin
from data_prep.table.schema import LINE, MULTILINE, NUMBER, STRING, UNQUOTED, Schema
from data_prep.table.text_values import READERS, first_refused
from ssmpi.runtime.errors import DataError

CONVERSION = re.compile(r"In CSV column #(\d+): .*invalid value '(.*)'", re.DOTALL)
COUNT = re.compile(r"Expected (\d+) columns, got (\d+)")
ROW = re.compile(r"Row #(\d+):")
FEW = 512  # lines of which pyarrow is asked for the first bad one
OPEN = (
    '{}:{}: a quote opens a value that {}, in {}; in [table] of the schema write quoting = {}"none" if quotes are part '
    "of values"
)


class TextTable(TableFormat, TextFiles):
    """CSV and its like. Every file has the columns that the schema names, in any order."""

    def __init__(self, schema: Schema, sources: Sequence[RawSource], seed: int, only_train: bool) -> None:
        super().__init__(schema, sources, seed, only_train)
        self._quoted = schema.quoting != UNQUOTED
        self._constants: list[dict[str, pa.Scalar]] = []
        self._names = [self._header(source) for source in sources]
        self._piece: OpenPiece | None = None
        self._origin = RowOrigin(0, 0)

    def rows_of(self, text: np.ndarray, offset: int, piece: OpenPiece) -> int:
        """A row is a line that is not blank."""
        return len(self._lines(text, offset, len(self._names[piece.source.index]))[2])

    def estimated_rows(self, source: RawSource) -> int:
        """Without the header."""
        return max(1, super().estimated_rows(source) - (not self.schema.columns))

    def _header(self, source: RawSource) -> list[str]:
        schema = self.schema
        fields, line = first_fields(source, schema.separator, quoted=self._quoted)
        names = list(schema.columns) or fields
        self._constants.append(partition_columns(schema, source, names))
        every = [*names, *self._constants[-1]]
        if len(names) != len(fields) or not set(self._kinds) <= set(every):
            refuse_other_text(source.path, line)
        require_columns(schema, source.path, every)
        return names

    def parse(self, text: np.ndarray, offset: int, piece: OpenPiece) -> Rows:
        """By pyarrow, without the bad rows."""
        if self._piece is not piece:
            self._piece, self._origin = piece, RowOrigin(*piece.piece)
        names = self._names[piece.source.index]
        text, lines, starts = self._lines(text, offset, len(names))
        try:
            table = self._read(text, names, len(lines) - 1)
        except pa.ArrowInvalid:
            content = bytes(text)
            good = []
            for first, last, problem in self._sound(content, lines, names, 0, len(lines) - 1):
                if problem:
                    self._refuse_open(piece, offset + int(starts[first]), content[lines[first] : lines[last]])
                    self.refuse(piece, offset + int(starts[first]), *problem)
                else:
                    good.append((first, last))
            text = np.frombuffer(b"".join(content[lines[a] : lines[b]] for a, b in good), dtype=np.uint8)
            starts = np.concatenate([np.arange(0), *(starts[a:b] for a, b in good)]).astype(np.int64)
            table = self._read(text, names, len(starts))
        for name, value in self._constants[piece.source.index].items():
            table = table.append_column(name, pa.repeat(value, table.num_rows))
        columns = {name: table.column(name).combine_chunks() for name in self._kinds}
        rows, bad = self._builder.build(columns, table.num_rows, self._origin)
        bad |= self._not_numbers(columns, text, names)
        for row in sorted(bad):
            self.refuse(piece, offset + int(starts[row]), *bad[row])
        return bad.left_out_of(rows)

    def _not_numbers(self, columns: Mapping[str, pa.Array], text: np.ndarray, names: Sequence[str]) -> BadRows:
        """Rows with a NaN in a column of numbers: Arrow reads it, but only ``table.missing`` says what is missing."""
        bad = BadRows()
        for name in (name for name in names if self._kinds.get(name) == NUMBER):
            rows = np.flatnonzero(pc.is_nan(columns[name]).fill_null(False).to_numpy(zero_copy_only=False))
            written = self._columns(text, names, {name: ARROW[STRING]}).column(name) if len(rows) else []
            bad |= {int(row): self._wrong_value(name, shorten(written[row].as_py())) for row in rows}
        return bad

    def _lines(self, text: np.ndarray, offset: int, columns: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """As ``without_blank``, without a byte order mark and the header too."""
        ends = np.flatnonzero(text == 10) + 1
        if self.schema.quoting == MULTILINE:
            ends, is_open = self._row_ends(text)
            ends = np.append(ends, text.size) if is_open else ends
        first = mark_size(text, offset)
        if offset == 0 and not self.schema.columns:
            first, ends = ends[0], ends[1:]
        text, lines = text[first:], np.concatenate([[0], ends - first])
        text, lines, starts = without_blank(text, lines) if columns > 1 else (text, lines, lines[:-1])
        return text, lines, starts + first

    def _row_ends(self, text: np.ndarray) -> tuple[np.ndarray, bool]:
        return row_ends(text, ord(self.schema.separator))

    def _read(self, text: np.ndarray | bytes, names: Sequence[str], rows: int) -> pa.Table:
        """Parse whole lines; ArrowInvalid unless each is a row."""
        types = {name: ARROW[kind] for name, kind in self._kinds.items() if name in names}
        if rows == 0:
            return pa.table({name: pa.array([], kind) for name, kind in types.items()})
        try:
            table = self._columns(text, names, types)
        except pa.ArrowInvalid:
            texts = {name: ARROW[STRING] if self._kinds[name] in READERS else types[name] for name in types}
            if texts == types:
                raise
            table = self._converted(self._columns(text, names, texts), names)
        if table.num_rows != rows or self._is_open(text):
            raise pa.ArrowInvalid(f"{rows} lines are {table.num_rows} rows")
        return table

    def _columns(self, text: np.ndarray | bytes, names: Sequence[str], types: dict[str, pa.DataType]) -> pa.Table:
        """Parse columns as ``types``; ArrowInvalid if a value is none."""
        return arrow_csv.read_csv(
            pa.BufferReader(pa.py_buffer(text)),
            arrow_csv.ReadOptions(use_threads=False, block_size=len(text) + 1, column_names=list(names)),
            arrow_csv.ParseOptions(
                delimiter=self.schema.separator, quote_char='"' if self._quoted else False, ignore_empty_lines=False
            ),
            arrow_csv.ConvertOptions(
                column_types=types, include_columns=list(types), null_values=list(self.schema.missing)
            ),
        )

    def _converted(self, table: pa.Table, names: Sequence[str]) -> pa.Table:
        """The table with strings of ``READERS`` read; ArrowInvalid, as the reader of CSV words it, if one is wrong."""
        for place, name in enumerate(table.column_names):
            if read := READERS.get(self._kinds[name]):
                texts = null_where_missing(table.column(name).combine_chunks(), self._builder.missing)
                try:
                    table = table.set_column(place, name, read(texts))
                except pa.ArrowInvalid as error:
                    row = first_refused(texts, read)
                    value = texts[row].as_py().decode("utf-8", "backslashreplace")
                    raise pa.ArrowInvalid(
                        f"In CSV column #{names.index(name)}: Row #{row + 1}: invalid value '{value}'"
                    ) from error
        return table

    def _is_open(self, text: np.ndarray | bytes) -> bool:
        """Whether whole lines end in a quoted value, which pyarrow ends there, at the last of them."""
        content = bytes(text)
        last = 0 if self.schema.quoting == MULTILINE else content.rfind(b"\n", 0, len(content) - 1) + 1
        return self._quoted and self._row_ends(np.frombuffer(content[last:], np.uint8))[1]

    def _sound(
        self, text: bytes, lines: np.ndarray, names: Sequence[str], first: int, last: int
    ) -> Iterator[tuple[int, int, tuple[str, str] | None]]:
        """Cut lines ``[first, last)`` into ranges that can be read, and bad ones, each with its problem."""
        try:
            self._read(text[lines[first] : lines[last]], names, last - first)
        except pa.ArrowInvalid as error:
            if last - first == 1:
                yield first, last, self._problem(str(error), text[lines[first] : lines[last]], names)
                return
            cuts, named = [first, (first + last) // 2, last], ROW.search(str(error))
            if named and last - first <= FEW:
                bad = min(first + int(named[1]), last) - 1
                cuts = [first, bad, bad + 1, last]
            for a, b in pairwise(cuts):
                if a < b:
                    yield from self._sound(text, lines, names, a, b)
        else:
            yield first, last, None

    def _refuse_open(self, piece: OpenPiece, at: int, row: bytes) -> None:
        """RawDataError if the row at byte ``at`` ends in a quoted value: it is not to be skipped, for the next line may
        look like a row and be the rest of the value.
        """
        if self._is_open(row):
            source, found = piece.source, shorten(row.rstrip())
            what = ("does not end in its line", '"multiline" if values have newlines, or ')
            if self.schema.quoting == MULTILINE:
                what = ("nothing ends", "")
            text = OPEN.format(source.path, line_of(source, at), what[0], found, what[1])
            raise RawDataError(text, (source.index, at))

    def _problem(self, message: str, line: bytes, names: Sequence[str]) -> tuple[str, str]:
        row = shorten(line.rstrip(b"\r\n"))
        if count := COUNT.search(message):
            expected, got = count.groups()
            return "number of fields", f"{got} fields, expected {expected}, in {row}; repair or remove the row"
        if conversion := CONVERSION.search(message):
            return self._wrong_value(names[int(conversion[1])], shorten(conversion[2].encode()))
        return "row", f"{message} in {row}; a row is one line; repair or remove it"

    def _wrong_value(self, name: str, shown: str) -> tuple[str, str]:
        kind = {"number": "a number", "integer": "an integer", "timestamp": "a time"}.get(self._kinds[name], "text")
        remedy = "repair or remove the row, or name the value in table.missing of the schema"
        if self.schema.label and name == self.schema.label.column:
            remedy = f"""repair or remove the row, or write a rule such as label = "{name} == 'yes'\""""
        if name == self.schema.time and kind == "a number":
            remedy = 'write split.by = "time" if these are dates, else repair or remove the row'
        return f"value of {name}", f"{name} is {shown}, not {kind}; {remedy}"


def without_blank(text: np.ndarray, lines: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The text without blank lines, where its ``lines`` begin and end, and where they began before."""
    sizes, starts = np.diff(lines), lines[:-1]
    blank = (sizes == 1) | ((sizes == 2) & (text[starts] == ord("\r")))
    if not blank.any():
        return text, lines, starts
    kept = ~blank
    return text[np.repeat(kept, sizes)], np.concatenate([[0], np.cumsum(sizes[kept])]), starts[kept]


def first_fields(source: RawSource, separator: str, *, quoted: bool) -> tuple[list[str], str]:
    """The values of the first row of text, and the row; DataError if there is none, or it is no text."""
    with TextStream(source) as stream:
        text, _ = next(stream.blocks(1), (None, 0))
        if text is None:
            raise DataError(f"{source.path}:1: holds no text; leave the file out")
        line = bytes(text[mark_size(text, 0) :]).decode("utf-8", "backslashreplace").rstrip("\r\n")
    try:
        if "\0" in line:
            raise csv.Error("it has NUL bytes")
        return next(
            csv.reader([line], delimiter=separator, quoting=csv.QUOTE_MINIMAL if quoted else csv.QUOTE_NONE)
        ), line
    except csv.Error as error:
        raise DataError(f"{source.path}:1: is no row of text ({error}); give CSV, TSV or Parquet") from error


def refuse_other_text(path: Path, line: str) -> None:
    """DataError if text that begins with this line has another format than a table."""
    if other := text_format(line):
        raise DataError(f"{path}:1: is {other}")


def quoting_of(content: bytes, separator: str) -> str:
    """How text is quoted: within lines if every quote is closed in its line; else not at all if all lines have the same
    number of separators, or over several lines.
    """
    if len(row_ends(np.frombuffer(content, np.uint8), ord(separator))[0]) == len(content.split(b"\n")) - 1:
        return LINE
    counts = {line.count(separator.encode()) for line in content.splitlines() if line}
    return UNQUOTED if len(counts) == 1 else MULTILINE
