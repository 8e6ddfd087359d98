"""How often lookups miss memory where rows lie on a disk (``embedding.storage``): from how often each id occurs."""

from __future__ import annotations

import json
import mmap
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import h5py
import numpy as np

from ssmpi.data.features import CRITEO
from ssmpi.data.schema import RARE_ID, VOCABULARY_NAME, vocabulary_group
from ssmpi.runtime.errors import DataError
from ssmpi.runtime.files.hdf5 import UNREADABLE, opened

READS = 50_000  # assumed: pages that a local SSD reads in a second, at random and many at a time
HALVINGS = 60


class Occurrences(NamedTuple):
    """Of each table, how often its ids occur in so many ``examples``, int64 (ids,), in the order of their rows. The
    first is that of missing and of rare tokens, which have two rows. No tables if the counts of some are not known.
    """

    tables: Sequence[np.ndarray]
    examples: int

    def sizes(self, least: int = 0) -> list[int]:
        """Rows of each table without the ids that occur less often."""
        return [RARE_ID + 1 + int(np.count_nonzero(table[1:] >= least)) for table in self.tables]

    def misses(self, row_bytes: int, room: float) -> str:
        """Which share of lookups misses ``room`` bytes of memory, and how fast a disk lets training be then at most."""
        if not self.tables:
            return f"the share of lookups that have to read is not known without counts of all ids in {VOCABULARY_NAME}"
        share = missed(self.tables, row_bytes, room)
        if not (each := share * sum(int(table.sum()) for table in self.tables) / self.examples):
            return "no lookup has to read"
        return (
            f"{share:.2%} of the lookups have to read, {each:.3g} an example: a disk that reads {READS:,} pages/s"
            f" allows {READS / each:,.0f} examples/s"
        )


def occurrences(data: Path, sizes: Sequence[int]) -> Occurrences:
    """Those that the vocabulary of ``data`` tells, if its ids are those of tables of these ``sizes``: ids of hashed
    features and keys have no counts. DataError if it is damaged.
    """
    if not (path := data / VOCABULARY_NAME).is_file():
        return Occurrences([], 0)
    try:
        with opened(path) as file:
            about = json.loads(file.attrs["about"])
            groups = [vocabulary_group(file, name) for name in about.get("features", CRITEO.sparse)]
            if [len(group.get("count", ())) + RARE_ID + 1 for group in groups] != list(sizes):
                return Occurrences([], 0)
            examples = int(about["fitted_rows"])
            return Occurrences([_counts(group["count"], examples) for group in groups], examples)
    except UNREADABLE as error:
        raise DataError(f"{path}: cannot be read ({error}); prepare the data again") from error


def _counts(saved: h5py.Dataset, examples: int) -> np.ndarray:
    """Of missing and rare tokens, and of each id; without a copy, because there may be 100 M and more."""
    counts = np.zeros(len(saved) + 1, np.int64)
    if len(saved):
        saved.read_direct(counts, dest_sel=np.s_[1:])
    counts[0] = max(0, examples - counts.sum())
    return counts


def missed(tables: Iterable[np.ndarray], row_bytes: int, room: float) -> float:
    """The share of lookups whose page is not among those used last, for which there is ``room``, if ids come
    independently, by the approximation of Che, Tung and Wang (2002), in which every page stays for the same time.
    ``tables`` have the counts of their ids. A page is as many whole rows as it has, or one larger row.
    """
    rows = max(1, mmap.PAGESIZE // row_bytes)
    pages = np.concatenate([np.add.reduceat(table, np.arange(0, len(table), rows)) for table in tables if len(table)])
    values, alike = np.unique(pages[pages > 0], return_counts=True)  # of many pages few differ
    often, most = values / (values @ alike), room / (rows * row_bytes)
    if alike.sum() <= most:
        return 0.0
    low, high = 0.0, 1.0 / often.min() * 100
    for _ in range(HALVINGS):  # the time, in lookups, after which so many pages have been used
        time = (low + high) / 2
        low, high = (time, high) if -(alike @ np.expm1(-often * time)) < most else (low, time)
    return float((alike * often) @ np.exp(-often * low))
