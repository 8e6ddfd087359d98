"""A preparation in progress: the arguments of every step of both passes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from data_prep.options import PrepareOptions
from data_prep.ranks import Ranks
from ssmpi.data.schema import WORK_NAME

DAY_NAME = re.compile(r"day_(\d+)(\.gz)?$")


@dataclass(frozen=True)
class RawSource:
    """One raw file. ``size`` and ``modified`` are the file's own (compressed) bytes and nanoseconds."""

    path: Path
    index: int
    size: int
    modified: int
    gzipped: bool

    @property
    def name(self) -> str:
        """The file name, the only part of the path that is written to outputs."""
        return self.path.name


@dataclass
class Preparation:
    """A preparation in progress: the options, the ranks, the raw files and whether they have labels."""

    options: PrepareOptions
    ranks: Ranks
    sources: list[RawSource]
    labelled: bool
    identity: dict[str, Any] = field(default_factory=dict)

    @property
    def work(self) -> Path:
        """The folder of temporary files; removed at the end."""
        return self.options.output / WORK_NAME

    @property
    def fitting(self) -> bool:
        """Whether the vocabulary is fitted on these files rather than given."""
        return self.options.vocabulary is None


def are_days(sources: Sequence[RawSource]) -> bool:
    """Whether these are several files with one day each."""
    return len(sources) > 1 and all(DAY_NAME.search(source.name) for source in sources)
