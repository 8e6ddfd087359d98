"""Raw files and the pieces of them that are read in one go, whatever is in them."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from urllib.parse import unquote

from data_prep.rows import Rows

DAY_NAME = re.compile(r"day_(\d+)(\.gz)?$")

Piece = tuple[int, int]  # source, number of the piece in it
Block = tuple[Rows, int]  # some rows, and the file's own bytes that were read for them


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


@dataclass(kw_only=True)
class OpenPiece(ABC):
    """A piece being read. ``skips``: bad rows are left out. ``last``: whether the source ends with it; ``digest``: the
    checksum of its bytes; ``skipped``: the bad rows that were left out, their number and the place of the first, by
    reason. These are valid after ``blocks`` has been iterated to its end. ``keep``: reads the piece, and keeps its rows
    for the next pass.
    """

    piece: Piece
    source: RawSource
    last: bool = False
    digest: str = ""
    skips: bool = False
    skipped: dict[str, list[int]] = field(default_factory=dict)
    keep: Callable[[OpenPiece], Iterator[Block]] | None = None

    def blocks(self) -> Iterator[Block]:
        """The rows that start in this piece, valid until the next ones are read; BadRowError at a bad one, unless it is
        skipped.
        """
        return self.keep(self) if self.keep else self.read()

    @abstractmethod
    def read(self) -> Iterator[Block]:
        """The same, from the file."""

    @abstractmethod
    def read_through(self) -> Iterator[int]:
        """As ``read`` without parsing: the bytes read."""
