"""Pass 1: check every row and count rows, labels, missing values and tokens, in bounded memory; restartable.

Token tables that reach their memory bound are spilled as sorted parts. Every 64 pieces, and at the end, a rank commits
a run: the parts and the records of the pieces they cover. A restarted job resumes after the last commits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

from data_prep.columns import DENSE_FEATURES, SPARSE_FEATURES
from data_prep.files import load_json, save_array, save_json
from data_prep.options import DLRM
from data_prep.preparation import Preparation, RawSource
from data_prep.progress import ProgressBar
from data_prep.raw.parser import ParsedRows, tally
from data_prep.raw.pieces import OpenPiece, Piece, deal, open_pieces
from data_prep.raw.sources import TextDigest
from data_prep.vocabulary.tables import CountTable, FirstTable, TokenTable
from ssmpi.core.errors import DataError

PIECES_PER_RUN = 64
SOURCE_SHIFT = 46  # a position is (source, byte); files are smaller than 64 TiB

Window = Callable[[Piece], tuple[int, int]]


@dataclass(frozen=True, kw_only=True)
class PieceRecord:
    """The counts of pass 1 for one piece: ``missing`` by field, ``largest`` is the largest value of each
    integer field.
    """

    source: int
    piece: int
    last: bool
    rows: int
    positives: int
    missing: list[int]
    largest: list[int]
    skipped: dict[str, list[int]]
    digest: str

    @property
    def key(self) -> Piece:
        """Source and number of the piece."""
        return self.source, self.piece


@dataclass
class Spill:
    """Sorted tokens and values of all features, as written by one spill; ``bounds`` (27,) cuts them into features."""

    name: str
    bounds: list[int]


@dataclass
class ScanResult:
    """All records in input order, and the parts with the token counts."""

    records: list[PieceRecord]
    parts: list[Spill] = field(default_factory=list)

    def of(self, source: RawSource) -> list[PieceRecord]:
        """The records of one raw file."""
        return [record for record in self.records if record.source == source.index]


class ScanRun:
    """The pieces a rank has read since its last commit, and their token tables."""

    def __init__(self, folder: Path, table_bytes: int, first_appearance: bool, max_ind_range: int) -> None:
        self._folder, self._budget = folder, table_bytes
        self._modulus = max_ind_range
        kind = FirstTable if first_appearance else CountTable
        self._tables: list[TokenTable] = [kind() for _ in range(SPARSE_FEATURES)]
        self._records: list[PieceRecord] = []
        self._parts: list[Spill] = []
        self._name = ""

    def begin(self, piece: Piece) -> None:
        """Start a piece; the first one names the run."""
        if not self._name:
            self._name = f"{piece[0]:04d}-{piece[1]:06d}"

    def count(self, rows: ParsedRows, position: int) -> None:
        """Count the tokens of ``rows``, the first at ``position``; spill before the tables outgrow their bound."""
        if sum(table.bytes_with(rows.rows) for table in self._tables) > self._budget:
            self._spill()
        tokens = reduce_tokens(rows.tokens, self._modulus)
        for f, table in enumerate(self._tables):
            table.take(rows, f, tokens[f], position)

    def end(self, record: PieceRecord) -> None:
        """Finish a piece."""
        self._records.append(record)
        if len(self._records) >= PIECES_PER_RUN:
            self.commit()

    def commit(self) -> None:
        """Make everything so far durable."""
        if not self._records:
            return
        self._spill()
        body = {"records": [asdict(r) for r in self._records], "parts": [asdict(p) for p in self._parts]}
        save_json(self._folder / f"run-{self._name}.json", body)
        self._records, self._parts, self._name = [], [], ""

    def _spill(self) -> None:
        bounds = [0, *np.cumsum([table.entries for table in self._tables]).tolist()]
        if bounds[-1] == 0:
            return
        part = Spill(f"part-{self._name}-{len(self._parts):03d}", bounds)
        tokens = np.empty(bounds[-1], dtype=np.uint32)
        values = np.empty(bounds[-1], dtype=np.int64)
        for f, table in enumerate(self._tables):
            tokens[bounds[f] : bounds[f + 1]], values[bounds[f] : bounds[f + 1]] = table.drain()
        save_array(self._folder / f"{part.name}.tokens.npy", tokens)
        save_array(self._folder / f"{part.name}.values.npy", values)
        self._parts.append(part)


def reduce_tokens(tokens: np.ndarray, max_ind_range: int) -> np.ndarray:
    """Tokens modulo ``max_ind_range`` (0: as they are); uint32, any shape."""
    return tokens % np.uint32(max_ind_range) if max_ind_range else tokens


def scan(job: Preparation, name: str, title: str, window: Window | None) -> ScanResult:
    """Read all raw rows. Tokens are counted for the rows of each piece that ``window`` gives, or not at all (None)."""
    folder = job.work / name
    done = {record.key for record in job.ranks.first(lambda: read_runs(folder)).records}

    def body() -> set[Piece]:
        options = job.options
        run = ScanRun(folder, options.table_bytes, options.id_order == DLRM, options.max_ind_range)
        mine, read = deal(job), set()
        with ProgressBar(job.ranks, title, sum(unit.bytes for unit in mine), "B") as progress:
            for unit in mine:
                for opened in open_pieces(job, unit, done):
                    run.begin(opened.piece)
                    run.end(_scan_piece(opened, run, window, progress))
                    read.add(opened.piece)
        run.commit()
        return read

    read = job.ranks.together(body)
    found = job.ranks.first(lambda: read_runs(folder))
    lost = job.ranks.allgather(len(read - {record.key for record in found.records}))
    for rank, count in enumerate(lost):
        if count:
            raise DataError(
                f"{folder}: {count:,} records that rank {rank} has written are not there for rank 0; give an --output "
                "on a file system that all ranks share"
            )
    return found


def _scan_piece(opened: OpenPiece, run: ScanRun, window: Window | None, progress: ProgressBar) -> PieceRecord:
    rows = positives = 0
    largest = np.zeros(DENSE_FEATURES, dtype=np.int64)
    missing = np.zeros(DENSE_FEATURES + SPARSE_FEATURES, dtype=np.int64)
    low, high = window(opened.piece) if window else (0, 0)
    position = opened.stream.file_position
    digest = TextDigest()
    for block in opened.blocks(digest):
        first, last = max(low - rows, 0), min(high - rows, block.rows)
        if first < last:
            run.count(block.part(first, last), (opened.piece[0] << SOURCE_SHIFT) + opened.start + rows + first)
        positives += tally(block, missing, largest)
        rows += block.rows
        before, position = position, opened.stream.file_position
        progress.advance(position - before, block.rows)
    skipped = opened.skipped.reasons if opened.skipped else {}
    source, piece = opened.piece
    return PieceRecord(
        source=source,
        piece=piece,
        last=opened.last,
        rows=rows,
        positives=positives,
        missing=missing.tolist(),
        largest=largest.tolist(),
        skipped=skipped,
        digest=digest.hexdigest(),
    )


def read_runs(folder: Path) -> ScanResult:
    """All committed runs of a scan."""
    records: list[PieceRecord] = []
    parts: list[Spill] = []
    for path in sorted(folder.glob("run-*.json")):
        body = load_json(path)
        records += [PieceRecord(**record) for record in body["records"]]
        parts += [Spill(part["name"], part["bounds"]) for part in body["parts"]]
    return ScanResult(sorted(records, key=lambda record: record.key), parts)


def every_row(piece: Piece) -> tuple[int, int]:
    """The window of all rows."""
    return 0, 1 << 62
