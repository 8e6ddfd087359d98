"""A preparation in progress: the arguments of every step of both passes, and the face of a format of raw files."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from data_prep.kept_rows import KeptRows
from data_prep.options import PrepareOptions
from data_prep.pieces import OpenPiece, Piece, RawSource, Unit
from data_prep.progress import ProgressBar
from data_prep.ranks import BadRowError, Ranks
from data_prep.rows import Rows
from ssmpi.data.features import Features
from ssmpi.data.schema import WORK_NAME

T = TypeVar("T")


class RowFormat(ABC):
    """A kind of raw files: how their rows are read, and what the features are."""

    features: Features
    transform: str  # of dense values, for people
    labelled: bool
    min_counts: Sequence[int]  # of each sparse feature: that below which tokens are rare; 0: that of the options
    hash_ranges: Sequence[int]  # of each sparse feature: the range of tokens that are hashed, not counted; 0 for others
    hashes: Sequence[bool]  # of each sparse feature: whether its tokens are hashes of all bits of ``token_type``
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
        """Where the row ``at`` a place of a source is, for people."""

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
    def awaits(self, *, fitting: bool) -> list[str]:
        """What has to be known of all rows before any can be encoded, for people; empty if nothing. ``fitting`` a
        vocabulary rather than given one.
        """

    def fitted(self, moments: np.ndarray) -> dict[str, Any]:
        """What the vocabulary is to record, from moments float64 (dense, 3) of all counted rows."""
        return {}

    def check(self, records: Sequence[Any], sources: Sequence[RawSource], *, fitting: bool) -> None:  # noqa: B027
        """Raise RawDataError if what pass 1 has found of the pieces (``PieceRecord``) cannot be prepared; ``fitting`` a
        vocabulary.
        """

    def remarks(self, records: Sequence[Any]) -> list[str]:
        """What people have to be told of the rows (``PieceRecord``) that were prepared."""
        return []

    def kept_bytes(self, sources: Sequence[RawSource]) -> int:
        """The most bytes of disk for the rows that one pass keeps for the next; 0: every pass reads the raw files."""
        return 0

    def refuse(self, piece: OpenPiece, at: int, reason: str, found: str) -> None:
        """A bad row ``at`` a place of the source of a piece: BadRowError, or a note that it is skipped."""
        if not piece.skips:
            raise BadRowError(f"{self.place(piece.source, at)}: {found}", (piece.source.index, at))
        piece.skipped.setdefault(reason, [0, at])[0] += 1


@dataclass
class Preparation:
    """A preparation in progress: the options, the ranks, the raw files and their format. ``kept``: the rows that this
    process keeps from one pass for the next, if it keeps any.
    """

    options: PrepareOptions
    ranks: Ranks
    sources: list[RawSource]
    format: RowFormat
    identity: dict[str, Any] = field(default_factory=dict)
    kept: KeptRows | None = None

    @property
    def work(self) -> Path:
        """The folder of temporary files; removed at the end."""
        return self.options.output / WORK_NAME

    @property
    def kept_folder(self) -> Path:
        """The folder of the rows that are kept."""
        return self.work / "rows"

    @property
    def fitting(self) -> bool:
        """Whether the vocabulary is fitted on these files rather than given."""
        return self.options.vocabulary is None

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
        return self.fitting and not all(self.format.hash_ranges)

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

    def open_pieces(self, unit: Unit, done: Container[Piece] = ()) -> Iterator[OpenPiece]:
        """Open the pieces of a unit one after the other, skipping those in ``done``; kept ones in place of raw ones."""
        if self.kept is None:
            yield from self.format.open_pieces(self, unit, done)
        elif pieces := self.kept.pieces_of(unit):
            yield from (one for one in pieces if one.piece not in done)
        else:
            yield from map(self.kept.keeping, self.format.open_pieces(self, unit, done))

    def of_pieces(
        self, title: str, body: Callable[[OpenPiece, ProgressBar], T], done: Container[Piece] = ()
    ) -> list[tuple[Piece, T]]:
        """What ``body`` makes of each piece that this rank opens; ``title`` of the progress bar."""
        mine = self.deal()
        with ProgressBar(self.ranks, title, sum(unit.bytes for unit in mine), "B") as progress:
            return [(opened.piece, body(opened, progress)) for unit in mine for opened in self.open_pieces(unit, done)]

    def of_all_pieces(self, title: str, body: Callable[[OpenPiece, ProgressBar], T]) -> list[tuple[Piece, T]]:
        """The same of all ranks, in input order. Every rank calls it."""
        found = self.ranks.together(lambda: self.of_pieces(title, body))
        return sorted(pair for some in self.ranks.allgather(found) for pair in some)
