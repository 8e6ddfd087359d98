"""Pass 1: check every row and count rows, labels, missing values and tokens, in bounded memory; restartable.

Token tables that reach their memory bound are spilled as sorted parts. Every 64 pieces, and at the end, a rank commits
a run: the parts and the records of the pieces they cover. A restarted job resumes after the last commits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

from data_prep.files import load_json, save_array, save_json
from data_prep.options import PrepareOptions
from data_prep.pieces import OpenPiece, Piece, RawSource
from data_prep.preparation import Preparation, RowFormat
from data_prep.progress import ProgressBar
from data_prep.rows import Rows, Tally
from data_prep.vocabulary.token_tables import CountTable
from ssmpi.data.schema import SPLITS
from ssmpi.runtime.errors import DataError

PIECES_PER_RUN = 64
SCAN, FIT = "scan", "fit"  # folders of scans: of all rows, or of those that the vocabulary is fitted on

Window = Callable[[Piece], tuple[int, int]]


@dataclass(frozen=True, kw_only=True)
class PieceRecord:
    """The counts of pass 1 for one piece; see ``Tally``."""

    source: int
    piece: int
    last: bool
    rows: int
    positives: int
    missing: list[int]
    largest: list[int]
    splits: list[int]
    moments: list[list[float]]
    times: list[float]
    skipped: dict[str, list[int]]
    digest: str
    listed: int = 0

    @property
    def key(self) -> Piece:
        """Source and number of the piece."""
        return self.source, self.piece


@dataclass
class Spill:
    """Sorted tokens and values of all features, as one spill wrote them; ``bounds`` (sparse + 1,) cuts them apart."""

    name: str
    bounds: list[int]


@dataclass
class ScanResult:
    """All records in input order, and the parts with the token counts, which are in the folder ``name``."""

    records: list[PieceRecord]
    parts: list[Spill] = field(default_factory=list)
    name: str = SCAN

    def of(self, source: RawSource) -> list[PieceRecord]:
        """The records of one raw file."""
        return [record for record in self.records if record.source == source.index]


class ScanRun:
    """The pieces a rank has read since its last commit, and their token tables."""

    def __init__(self, folder: Path, options: PrepareOptions, of: RowFormat) -> None:
        self._folder, self._budget = folder, options.table_bytes
        self._modulus, self._token_type = options.max_ind_range, of.token_type
        features = range(len(of.features.sparse))
        self._tables = [CountTable(of.token_type, hashes=of.hashes[f] and not options.max_ind_range) for f in features]
        self._hashed = [hashed > 0 for hashed in of.hash_ranges]
        self._records: list[PieceRecord] = []
        self._parts: list[Spill] = []
        self._name = ""

    def begin(self, piece: Piece) -> None:
        """Start a piece; the first one names the run."""
        if not self._name:
            self._name = f"{piece[0]:04d}-{piece[1]:06d}"

    def count(self, rows: Rows) -> None:
        """Count the tokens of ``rows``; spill before the tables outgrow their bound."""
        tokens = [rows.tokens_of(f).modulo(self._modulus) for f in range(len(self._tables))]
        wanted = zip(self._tables, tokens, strict=True)
        if sum(table.bytes_with(len(some.values)) for table, some in wanted) > self._budget:
            self._spill()
        for f, table in enumerate(self._tables):
            if not self._hashed[f]:
                table.count(tokens[f])

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
        tokens = np.empty(bounds[-1], dtype=self._token_type)
        values = np.empty(bounds[-1], dtype=np.int64)
        for f, table in enumerate(self._tables):
            tokens[bounds[f] : bounds[f + 1]], values[bounds[f] : bounds[f + 1]] = table.drain()
        save_array(self._folder / f"{part.name}.tokens.npy", tokens)
        save_array(self._folder / f"{part.name}.values.npy", values)
        self._parts.append(part)


def scan(job: Preparation, name: str, title: str, window: Window | None) -> ScanResult:
    """Read all rows. Tokens are counted for the rows of each piece that ``window`` gives, or not at all (None)."""
    folder = job.work / name
    done = {record.key for record in job.ranks.first(lambda: read_runs(folder)).records}

    def body() -> set[Piece]:
        run = ScanRun(folder, job.options, job.format)

        def count(opened: OpenPiece, progress: ProgressBar) -> None:
            run.begin(opened.piece)
            run.end(_scan_piece(opened, _tally(job.format), run, window, progress))

        read = job.of_pieces(title, count, done)
        run.commit()
        return {piece for piece, _ in read}

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


def _tally(of: RowFormat) -> Tally:
    dense, fields = len(of.features.dense), len(of.features.dense) + len(of.features.sparse)
    missing, largest, splits = (np.zeros(size, dtype=np.int64) for size in (fields, dense, len(SPLITS)))
    return Tally(missing, largest, splits, np.zeros((dense, 3)))


def _scan_piece(
    opened: OpenPiece, tally: Tally, run: ScanRun, window: Window | None, progress: ProgressBar
) -> PieceRecord:
    rows = 0
    low, high = window(opened.piece) if window else (0, 0)
    for block, read in opened.blocks():
        first, last = max(low - rows, 0), min(high - rows, block.rows)
        if first < last:
            run.count(block.part(first, last).counted(tally))
        block.tally(tally)
        rows += block.rows
        progress.advance(read, block.rows)
    source, piece = opened.piece
    return PieceRecord(
        source=source,
        piece=piece,
        last=opened.last,
        rows=rows,
        positives=tally.positives,
        missing=tally.missing.tolist(),
        largest=tally.largest.tolist(),
        splits=tally.splits.tolist(),
        moments=tally.moments.tolist(),
        times=tally.times,
        skipped=opened.skipped,
        digest=opened.digest,
        listed=tally.listed,
    )


def read_runs(folder: Path) -> ScanResult:
    """All committed runs of a scan."""
    records: list[PieceRecord] = []
    parts: list[Spill] = []
    for path in sorted(folder.glob("run-*.json")):
        body = load_json(path)
        records += [PieceRecord(**record) for record in body["records"]]
        parts += [Spill(part["name"], part["bounds"]) for part in body["parts"]]
    return ScanResult(sorted(records, key=lambda record: record.key), parts, folder.name)


def every_row(piece: Piece) -> tuple[int, int]:
    """The window of all rows."""
    return 0, 1 << 62
