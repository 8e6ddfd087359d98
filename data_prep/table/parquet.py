"""Tables in Parquet files as a ``RowFormat``: a piece is some row groups, or a part of one that has very many rows."""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet

from data_prep.pieces import Block, OpenPiece, Piece, RawSource, Unit
from data_prep.preparation import Preparation
from data_prep.ranks import RawDataError
from data_prep.raw.text_stream import CHANGED
from data_prep.rows import BadRows, Rows
from data_prep.table.arrow_strings import ARROW, cast_or_null
from data_prep.table.format import TableFormat, partition_columns, require_columns
from data_prep.table.lists import are_lists, usual, without_views
from data_prep.table.row_builder import RowOrigin
from data_prep.table.schema import INTEGER, LIST, NUMBER, STRING, TIMESTAMP, WEIGHTS, Schema
from ssmpi.runtime.errors import DataError

BATCH_ROWS = 1 << 14
READ_ROWS = 1 << 16  # a dictionary comes anew with each read: so one serves several batches
READ_BYTES = 1 << 20
PIECE_ROWS = 1 << 20  # that a piece may have at least: its packed rows are in memory at once
PLAIN_BYTES = 4  # a string of a page without a dictionary takes more
CASTS = {
    NUMBER: pc.CastOptions.unsafe(ARROW[NUMBER]),  # integers beyond 2**53 are rounded
    INTEGER: pc.CastOptions.safe(ARROW[INTEGER]),
    TIMESTAMP: pc.CastOptions(ARROW[TIMESTAMP], allow_time_truncate=True),  # nanoseconds are cut
}


@dataclass(frozen=True, kw_only=True)
class Groups:
    """The row groups of a piece: their numbers and bytes in the file, how many of their rows come before the piece, and
    its first row in the file and how many it has.
    """

    first: int
    last: int
    start: int
    stop: int
    skip: int
    row: int
    rows: int


@dataclass(kw_only=True)
class ParquetPiece(OpenPiece):
    """A piece of row groups."""

    of: ParquetTable
    groups: Groups

    def read(self) -> Iterator[Block]:
        """Batch by batch, each with its share of the file's bytes."""
        for _ in self.read_through():
            pass
        row, origin, size = 0, RowOrigin(*self.piece), self.groups.stop - self.groups.start
        for batch in self.of.batches(self.source, self.groups):
            rows, bad = self.of.build(batch, origin)
            for at in sorted(bad):
                self.of.refuse(self, self.groups.row + row + at, *bad[at])
            row += batch.num_rows
            yield bad.left_out_of(rows), size * batch.num_rows // self.groups.rows

    def read_through(self) -> Iterator[int]:
        """The bytes of the row groups, for their checksum."""
        checksum, left = 0, self.groups.stop - self.groups.start
        with self.source.path.open("rb") as file:
            file.seek(self.groups.start)
            while left and (part := file.read(min(READ_BYTES, left))):
                checksum = zlib.crc32(part, checksum)
                left -= len(part)
                yield len(part)
        self.digest = f"{checksum:08x}"


class ParquetTable(TableFormat):
    """Parquet files, each with the columns that the schema names."""

    knows_rows = True

    def __init__(self, schema: Schema, sources: Sequence[RawSource], seed: int, only_train: bool) -> None:
        super().__init__(schema, sources, seed, only_train)
        self._constants: list[dict[str, pa.Scalar]] = []
        self._metadata = [self._open(source) for source in sources]
        if not any(metadata.num_rows for metadata in self._metadata):
            raise DataError(f"{sources[0].path}: has no rows; leave it out")

    def units(self, job: Preparation) -> list[Unit]:
        """Pieces of row groups that have about ``piece_bytes`` of values."""
        return [Unit(source, number, groups.stop - groups.start) for source, number, groups in self._all_pieces(job)]

    def open_pieces(self, job: Preparation, unit: Unit, done: Container[Piece]) -> Iterator[OpenPiece]:
        """The one piece of the unit."""
        assert unit.piece is not None
        piece = (unit.source.index, unit.piece)
        if piece not in done:
            pieces = self._pieces(unit.source, job.options.piece_bytes)
            yield ParquetPiece(
                piece=piece, source=unit.source, last=unit.piece == len(pieces) - 1, skips=job.options.skip_bad_rows,
                of=self, groups=pieces[unit.piece],
            )  # fmt: skip

    def place(self, source: RawSource, at: int) -> str:
        """The row, from 1."""
        return f"{source.path}: row {at + 1:,}"

    def estimated_rows(self, source: RawSource) -> int:
        """As the file says."""
        return int(self._metadata[source.index].num_rows)

    def count_rows(self, job: Preparation) -> list[tuple[Piece, int]]:
        """As the files say."""
        return [((source.index, number), groups.rows) for source, number, groups in self._all_pieces(job)]

    def batches(self, source: RawSource, groups: Groups) -> Iterator[pa.RecordBatch]:
        """The used columns of some row groups."""
        if source.path.stat().st_size != source.size:
            raise RawDataError(CHANGED.format(source.path))
        try:
            encoded, constants = self._encoded(source, groups), self._constants[source.index]
            columns = [name for name in self._kinds if name not in constants]
            with _jemalloc(), parquet.ParquetFile(source.path, read_dictionary=encoded, pre_buffer=False) as file:
                found = file.iter_batches(
                    READ_ROWS, list(range(groups.first, groups.last)), columns=columns, use_threads=False
                )
                for batch in _cut(_window(found, groups.skip, groups.rows)):
                    read = dict(zip(batch.schema.names, map(usual, batch.columns), strict=True))
                    read |= {name: pa.repeat(value, batch.num_rows) for name, value in constants.items()}
                    yield pa.RecordBatch.from_pydict(read)
        except (pa.ArrowException, OSError) as error:
            raise RawDataError(f"{source.path}: damaged Parquet file ({error}); fetch it again") from error

    def build(self, batch: pa.RecordBatch, origin: RowOrigin) -> tuple[Rows, BadRows]:
        """Rows of a batch, and its bad ones."""
        bad = BadRows()
        columns = {name: _cast(name, batch.column(name), kind, bad) for name, kind in self._kinds.items()}
        rows, others = self._builder.build(columns, batch.num_rows, origin)
        others |= bad
        return rows, others

    def _encoded(self, source: RawSource, groups: Groups) -> list[str]:
        """The columns of strings of some row groups to read as dictionaries: of which hashes are needed alone, and
        which have dictionaries in most pages. Making one of others takes Arrow longer than hashing all of their strings
        takes us.
        """
        metadata, constants = self._metadata[source.index], self._constants[source.index]
        sizes = {name: 0 for name in self._builder.hashed_strings if name not in constants}
        for g in range(groups.first, groups.last):
            group = metadata.row_group(g)
            for c in range(group.num_columns):
                if (name := group.column(c).path_in_schema) in sizes:
                    sizes[name] += group.column(c).total_uncompressed_size
        return [name for name, size in sizes.items() if size < PLAIN_BYTES * groups.rows]

    def _all_pieces(self, job: Preparation) -> Iterator[tuple[RawSource, int, Groups]]:
        for source in job.sources:
            for number, groups in enumerate(self._pieces(source, job.options.piece_bytes)):
                yield source, number, groups

    def _pieces(self, source: RawSource, least: int) -> list[Groups]:
        metadata, most = self._metadata[source.index], max(PIECE_ROWS, least // len(self._kinds))
        pieces: list[Groups] = []
        first = row = rows = size = 0
        for g in range(metadata.num_row_groups):
            size += metadata.row_group(g).total_byte_size
            rows += metadata.row_group(g).num_rows
            if rows and (size >= least or rows >= most or g == metadata.num_row_groups - 1):
                start, stop = _extent(metadata, first, g + 1)
                for skip in range(0, rows, most):
                    some = min(most, rows - skip)
                    pieces.append(
                        Groups(first=first, last=g + 1, start=start, stop=stop, skip=skip, row=row + skip, rows=some)
                    )
                first, row, rows, size = g + 1, row + rows, 0, 0
        return pieces

    def _open(self, source: RawSource) -> parquet.FileMetaData:
        try:
            with parquet.ParquetFile(source.path) as file:
                metadata, found = file.metadata, file.schema_arrow
        except (pa.ArrowException, OSError) as error:
            raise DataError(f"{source.path}: not a readable Parquet file ({error}); fetch it again") from error
        self._constants.append(partition_columns(self.schema, source, found.names))
        if metadata.num_rows == 0:
            return metadata
        require_columns(self.schema, source.path, [*found.names, *self._constants[-1]])
        for name, kind in self._kinds.items():
            if name in self._constants[-1]:
                continue
            column = without_views(found.field(name).type)
            of = NUMBER if kind == WEIGHTS else self.schema.lists[name].type if kind == LIST else ""
            if not (_can_list(column, of) if of else _fits(column, kind)):
                dates = name == self.schema.time and self.schema.sorted
                remedy = 'write split.by = "time"' if dates else "change its type there, or convert the column"
                raise DataError(
                    f"{source.path}: column {name!r} is {column}, which cannot be read as the "
                    f"{f'list of {of}s' if of else kind} that {self.schema.path} says; {remedy}"
                )
        return metadata


@contextlib.contextmanager
def _jemalloc() -> Iterator[None]:
    """Have jemalloc for new memory of Arrow, where it is built in: decoding took 200 MB less than with its default."""
    before = pa.default_memory_pool()
    with contextlib.suppress(NotImplementedError):
        pa.set_memory_pool(pa.jemalloc_memory_pool())
    try:
        yield
    finally:
        pa.set_memory_pool(before)


def _window(batches: Iterator[pa.RecordBatch], skip: int, rows: int) -> Iterator[pa.RecordBatch]:
    """So many rows, after those to skip; ArrowInvalid if there are fewer."""
    for batch in batches:
        part = batch.slice(min(skip, batch.num_rows), rows)
        skip, rows = max(0, skip - batch.num_rows), rows - part.num_rows
        if part.num_rows:
            yield part
        if not rows:
            return
    raise pa.ArrowInvalid(f"{rows:,} rows fewer than it says")


def _cut(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in batches of ``BATCH_ROWS``, wherever row groups end: sums of moments depend on it."""
    rest: pa.RecordBatch | None = None
    for batch in batches:
        if rest is not None:
            head = batch.slice(0, BATCH_ROWS - rest.num_rows)
            joined = pa.Table.from_batches([rest, head]).combine_chunks().to_batches()[0]
            batch, rest = batch.slice(head.num_rows), None
            if joined.num_rows < BATCH_ROWS:
                rest = joined
                continue
            yield joined
        whole = batch.num_rows // BATCH_ROWS * BATCH_ROWS
        for at in range(0, whole, BATCH_ROWS):
            yield batch.slice(at, BATCH_ROWS)
        if whole < batch.num_rows:
            rest = batch.slice(whole)
    if rest is not None:
        yield rest


def _cast(name: str, column: pa.Array, kind: str, bad: BadRows) -> pa.Array:
    """Values of a column as the schema says; the rows of those that cannot be read so are bad. Text and lists stay."""
    if kind not in CASTS:
        return column
    if kind == INTEGER and pa.types.is_uint64(column.type):
        return column
    if kind == INTEGER and pa.types.is_floating(column.type):
        column = pa.array(column.to_numpy(zero_copy_only=False), from_pandas=True)  # null for NaN
    found = cast_or_null(column, ARROW[kind], CASTS[kind])
    if found.null_count > column.null_count:
        what = "microseconds" if kind == TIMESTAMP else "an integer"

        def wrong(row: int) -> str:
            shown = column[row].value if kind == TIMESTAMP else column[row].as_py()
            return f"{name} is {shown}, not {what} of 64 bits; repair or remove the row"

        bad.add(pc.and_(found.is_null(), column.is_valid()).to_numpy(zero_copy_only=False), f"value of {name}", wrong)
    return found


def _fits(found: pa.DataType, kind: str) -> bool:
    """Whether a column of a Parquet file can be read as the schema says."""
    if pa.types.is_dictionary(found):
        found = found.value_type
    text = pa.types.is_string(found) or pa.types.is_large_string(found) or pa.types.is_string_view(found)
    text = text or pa.types.is_binary(found) or pa.types.is_large_binary(found)
    number = pa.types.is_integer(found) or pa.types.is_floating(found) or pa.types.is_boolean(found)
    number = number or pa.types.is_decimal(found)
    moment = pa.types.is_timestamp(found) or pa.types.is_date(found)
    return {STRING: text, INTEGER: number, NUMBER: number, TIMESTAMP: moment}[kind] or pa.types.is_null(found)


def _can_list(found: pa.DataType, element: str) -> bool:
    """Whether a column can be read as lists of strings, integers or numbers: it has such, or text to split."""
    if not are_lists(found):
        return _fits(found, STRING)
    value = found.value_type
    exact = element != INTEGER or pa.types.is_integer(value) or pa.types.is_null(value)
    return exact and _fits(value, element)


def _extent(metadata: parquet.FileMetaData, first: int, last: int) -> tuple[int, int]:
    """The bytes of some row groups."""
    starts, stops = [], []
    for g in range(first, last):
        group = metadata.row_group(g)
        for c in range(group.num_columns):
            column = group.column(c)
            start = min(at for at in (column.dictionary_page_offset, column.data_page_offset) if at)
            starts.append(start)
            stops.append(start + column.total_compressed_size)
    return min(starts), max(stops)
