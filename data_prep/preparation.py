"""One preparation under way: what every step of both passes is given."""

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
        """The file name, the only part of the path that goes into outputs."""
        return self.path.name


@dataclass
class Preparation:
    """One preparation under way: the options, the ranks, the raw files and whether they have labels."""

    options: PrepareOptions
    ranks: Ranks
    sources: list[RawSource]
    labelled: bool
    identity: dict[str, Any] = field(default_factory=dict)

    @property
    def work(self) -> Path:
        """Where everything temporary lives; removed at the end."""
        return self.options.output / WORK_NAME

    @property
    def fitting(self) -> bool:
        """Whether the vocabulary is made from these files rather than given."""
        return self.options.vocabulary is None


def are_days(sources: Sequence[RawSource]) -> bool:
    """Whether these are several files of a day each."""
    return len(sources) > 1 and all(DAY_NAME.search(source.name) for source in sources)
