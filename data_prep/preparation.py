"""A preparation in progress: the arguments of every step of both passes, and the faces of a source of rows.

A ``RowFormat`` reads one kind of file. The passes know rows only as ``Rows``, and files only as pieces of them.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote

import numpy as np

from data_prep.options import PrepareOptions
from data_prep.ranks import Ranks
from data_prep.tokens import TokenLists, Tokens
from ssmpi.data.features import Features
from ssmpi.data.schema import WORK_NAME

DAY_NAME = re.compile(r"day_(\d+)(\.gz)?$")

Piece = tuple[int, int]  # source, number of the piece in it


@dataclass(frozen=True)
class RawSource:
    """One raw file. ``size`` and ``modified`` are the file's own (compressed) bytes and nanoseconds. ``multiline``:
    what separates values, where quoted ones may hold newlines. A file that is not ``divisible``, such as a gzip
    file, has to be read from its start."""

    path: Path
    index: int
    size: int
    modified: int
    compression: str = ""
    multiline: str = ""

    @property
    def name(self) -> str:
        """The file name, after those of ``partition``: the only part of the path that is written to outputs."""
        return "/".join([*(folder.name for folder in self._partition_folders), self.path.name])

    @property
    def partition(self) -> dict[str, str]:
        """The columns of all rows of the file that the folders around it say (Hive's partitions): ``key=value``."""
        return dict(unquote(folder.name).split("=", 1) for folder in self._partition_folders)

    @property
    def _partition_folders(self) -> list[Path]:
        return [*takewhile(lambda folder: "=" in folder.name[1:], self.path.absolute().parents)][::-1]

    @property
    def divisible(self) -> bool:
        """Whether it can be read from any byte on."""
        return not (self.compression or self.multiline)


@dataclass(frozen=True)
class Unit:
    """The work that one rank reads in one go: a piece, or all pieces of a compressed file (``piece`` None)."""

    source: RawSource
    piece: int | None
    bytes: int


@dataclass
class Tally:
    """What pass 1 counts: ``missing`` int64 (fields,); ``largest`` int64 (dense,): largest values, of tables absolute;
    ``splits`` int64 (3,), the rows of each split where rows say theirs; ``moments`` float64 (dense, 3): number, sum and
    sum of squares of the values of counted rows that are not missing; ``times``: the first and the last, where rows are
    to be in their order; ``listed``: tokens of all lists.
    """

    missing: np.ndarray
    largest: np.ndarray
    splits: np.ndarray
    moments: np.ndarray
    positives: int = 0
    times: list[float] = field(default_factory=list)
    listed: int = 0


class Rows(Protocol):
    """Parsed rows, column by column, valid until the next ones are read."""

    @property
    def rows(self) -> int:
        """Number of rows."""

    @property
    def label(self) -> np.ndarray:
        """uint8 (rows,)."""

    @property
    def lists(self) -> Sequence[TokenLists]:
        """Of each list feature; they follow the other sparse features."""

    @property
    def split(self) -> np.ndarray | None:
        """The index of each row's split, uint8 (rows,), or None if splits are ranges of rows."""

    def part(self, start: int, stop: int) -> Rows:
        """Rows ``[start, stop)``."""

    def tokens_of(self, feature: int) -> Tokens:
        """Of a sparse feature."""

    def tally(self, into: Tally) -> None:
        """Add to everything but ``moments``."""

    def counted(self, into: Tally) -> Rows:
        """The rows whose tokens are counted, added to ``moments``."""


class OpenPiece(Protocol):
    """A piece being read; ``last``, ``digest`` and ``skipped`` are valid after ``blocks`` has been iterated to its
    end."""

    @property
    def piece(self) -> Piece:
        """Source and number of the piece."""

    @property
    def source(self) -> RawSource:
        """The raw file."""

    @property
    def last(self) -> bool:
        """Whether the source ends with this piece."""

    @property
    def digest(self) -> str:
        """The checksum of the piece's text."""

    @property
    def skipped(self) -> dict[str, list[int]]:
        """Bad rows that were left out: their number and the place of the first, by reason."""

    def blocks(self) -> Iterator[tuple[Rows, int]]:
        """(Rows that start in this piece, the file's own bytes read for them); BadRowError at the first bad row unless
        skipped."""

    def read_through(self) -> Iterator[int]:
        """As ``blocks`` without parsing: the bytes read."""


class RowFormat(ABC):
    """A kind of raw files: how their rows are read, and what the features are."""

    features: Features
    transform: str  # of dense values, for people
    labelled: bool
    token_type: type[np.unsignedinteger[Any]] = np.uint32
    packs_floats = False  # packed dense values are bits of float32 (else integers, of which shards get logarithms)
    knows_rows = False  # its files say how many rows they have; else lines are counted
    splits_rows = False  # rows say in which split they are; else splits are ranges of rows
    hashes_alone = False  # all tokens are hashed and no dense value is scaled: what is fitted depends on no row

    def identity(self) -> dict[str, Any]:
        """What the output depends on besides the options and the sources, as JSON has it."""
        return {}

    @abstractmethod
    def chosen_split(self, options: PrepareOptions) -> tuple[str, str]:
        """The kind of split, and the split name for ``none``: as given, else by the rows."""

    @abstractmethod
    def units(self, job: Preparation) -> list[Unit]:
        """All units of the job, in input order."""

    @abstractmethod
    def open_pieces(self, job: Preparation, unit: Unit, done: Container[Piece]) -> Iterator[OpenPiece]:
        """Open the pieces of a unit one after the other, skipping those in ``done``."""

    @abstractmethod
    def place(self, source: RawSource, at: int) -> str:
        """Where ``at`` of a skipped row is in a source, for people."""

    @abstractmethod
    def estimated_rows(self, source: RawSource) -> int:
        """About how many rows a source has."""

    @abstractmethod
    def count_rows(self, job: Preparation) -> list[tuple[Piece, int]]:
        """All pieces of the job, in input order, and how many rows each has if none is bad. Every rank calls it."""

    @abstractmethod
    def packed(self, rows: Rows, fitted: Mapping[str, Any]) -> np.ndarray:
        """Dense values as they are packed, int64 (rows, dense). ``fitted``: what the vocabulary records of them."""

    @abstractmethod
    def largest_packed(self, largest: np.ndarray) -> list[int]:
        """The largest packed value of each dense feature, from ``largest`` int64 (dense,) of all rows."""

    def fitted(self, moments: np.ndarray) -> dict[str, Any]:
        """What the vocabulary is to record, from moments float64 (dense, 3) of all counted rows."""
        return {}

    def least_count(self, feature: int, options: PrepareOptions) -> int:
        """The count below which tokens of a sparse feature are rare."""
        return options.min_count

    def check(self, records: Sequence[Any], sources: Sequence[RawSource], *, fitting: bool) -> None:  # noqa: B027
        """Raise RawDataError if what pass 1 has found of the pieces (``PieceRecord``) cannot be prepared; ``fitting`` a
        vocabulary.
        """

    def remarks(self, records: Sequence[Any]) -> list[str]:
        """What people have to be told of the rows (``PieceRecord``) that were prepared."""
        return []

    def hash_range(self, feature: int) -> int:
        """The range of a feature whose tokens are hashed instead of counted; 0 for others."""
        return 0

    def kept_bytes(self, sources: Sequence[RawSource]) -> int:
        """The most bytes of disk for the rows that one pass keeps for the next; 0: every pass reads the raw files."""
        return 0

    def keep(self, folder: Path) -> None:  # noqa: B027
        """Keep rows in files of a folder from now on: those of a piece that was kept are read from there."""

    def last_pass(self) -> None:  # noqa: B027
        """From now on each piece is read for the last time."""

    def hashes(self, feature: int) -> bool:
        """Whether the tokens of a sparse feature are hashes of all bits of ``token_type``."""
        return False

    @abstractmethod
    def awaits(self, *, fitting: bool) -> list[str]:
        """What has to be known of all rows before any can be encoded, for people; empty if nothing. ``fitting`` a
        vocabulary rather than given one.
        """


@dataclass
class Preparation:
    """A preparation in progress: the options, the ranks, the raw files and their format."""

    options: PrepareOptions
    ranks: Ranks
    sources: list[RawSource]
    format: RowFormat
    identity: dict[str, Any] = field(default_factory=dict)

    @property
    def labelled(self) -> bool:
        """Whether rows have labels."""
        return self.format.labelled

    @property
    def work(self) -> Path:
        """The folder of temporary files; removed at the end."""
        return self.options.output / WORK_NAME

    @property
    def kept(self) -> Path:
        """The folder of the rows that ``RowFormat.keep`` keeps."""
        return self.work / "rows"

    @property
    def fitting(self) -> bool:
        """Whether the vocabulary is fitted on these files rather than given."""
        return self.options.vocabulary is None

    @property
    def awaits(self) -> list[str]:
        """What has to be known of all rows before any can be encoded."""
        return self.format.awaits(fitting=self.fitting)

    @property
    def fits_first_rows(self) -> bool:
        """Whether the vocabulary is fitted to the first rows: those of split "train", where rows do not say theirs."""
        return self.fitting and self.options.fit_on == "train" and not self.format.splits_rows

    @property
    def counts_rows_first(self) -> bool:
        """Whether rows are counted before they are checked: the first ones are wanted, and none may be left out."""
        return self.fits_first_rows and not self.options.skip_bad_rows

    @property
    def counting(self) -> bool:
        """Whether tokens of any feature are counted."""
        return self.fitting and not all(self.format.hash_range(f) for f in range(len(self.format.features.sparse)))

    def deal(self) -> list[Unit]:
        """This rank's units: each unit, largest first, is assigned to the rank with the least to read.

        Pieces do not depend on the number of ranks, so finished ones stay valid if a job resumes with another number.
        """
        loads = [0] * self.ranks.size
        mine = []
        everything = self.format.units(self)
        for i in sorted(range(len(everything)), key=lambda i: (-everything[i].bytes, i)):
            rank = loads.index(min(loads))
            loads[rank] += everything[i].bytes
            if rank == self.ranks.rank:
                mine.append(i)
        return [everything[i] for i in sorted(mine)]


def are_days(sources: Sequence[RawSource]) -> bool:
    """Whether these are several files with one day each."""
    return len(sources) > 1 and all(DAY_NAME.search(source.name) for source in sources)
