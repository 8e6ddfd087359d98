"""From how often each id occurs: which rows stay in memory where tables lie on a disk (``embedding.storage``), and how
often lookups miss it.
"""

from __future__ import annotations

import json
import mmap
import operator
from bisect import bisect_right
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import h5py
import numpy as np

from ssmpi.data.features import CRITEO
from ssmpi.data.schema import RARE_ID, VOCABULARY_NAME, vocabulary_group
from ssmpi.embedding.placement import Part
from ssmpi.embedding.table import RowOptions
from ssmpi.runtime.errors import DataError
from ssmpi.runtime.files.hdf5 import UNREADABLE, opened
from ssmpi.runtime.mpi.shared_memory import whole_pages

READS = 50_000  # assumed: pages that a local SSD reads in a second, at random and many at a time
HALVINGS = 60
HOT = 0.75  # of the memory that is left for rows: the kernel's page cache, which has the rest, adapts


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


def hot_rows(tables: Sequence[np.ndarray], parts: Sequence[Part], most: int) -> list[int]:
    """How many rows of each of a PS's ``parts`` are among the ``most`` that are looked up most often, always its first.
    ``tables`` have the counts of their ids.
    """

    def rows(least: int) -> list[int]:  # of ids that occur so often
        ends = {table: RARE_ID + bisect_right(tables[table], -least, 1, key=operator.neg) for table in used}
        return [len(range(part.first, ends[part.table], part.stride)) for part in parts]

    used = {part.table for part in parts}
    low, high = -1, max((int(tables[table].max(initial=0)) for table in used), default=0) + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if sum(rows(middle)) <= most else (middle, high)
    found = rows(high)
    if (left := most - sum(found)) < 0:
        return [0] * len(parts)
    for k, all_rows in enumerate(rows(low)):  # of ids that occur alike some are as good as others
        left -= (more := min(left, all_rows - found[k]))
        found[k] += more
    return found


def shares(parts: Sequence[Part], keyed: Collection[int], most: int) -> list[int]:
    """How many rows of each of a PS's ``parts`` are hot, ``most`` in all: the same share of each ``keyed`` table."""
    rows = [part.rows if part.table in keyed else 0 for part in parts]
    share = min(1.0, most / max(1, sum(rows)))
    return [int(share * each) for each in rows]


def hot_bytes(options: RowOptions, parts: Sequence[Part], hot: Sequence[int]) -> list[slice]:
    """The whole pages with the first ``hot`` rows of each of a PS's ``parts`` in its array of rows."""
    count, found = sum(part.rows for part in parts), list[slice]()
    places = (options.bytes_of(slice(p.base, p.base + n), count) for p, n in zip(parts, hot, strict=True))
    for each in sorted((each for some in places for each in some), key=lambda some: (some.start, some.stop)):
        if found and found[-1].stop == each.start:
            each = slice(found.pop().start, each.stop)
        found.append(each)
    pages = map(whole_pages, found)
    return [slice(start, stop) for start, stop in pages if start < stop]


def missed(tables: Iterable[np.ndarray], row_bytes: int, room: float) -> float:
    """The share of lookups whose page is neither a hot one nor among the others used last, for which there is ``room``,
    if ids come independently, by the approximation of Che, Tung and Wang (2002), in which every page stays for the same
    time. ``tables`` have the counts of their ids. A page is as many whole rows as it has, or one larger row.
    """
    rows = max(1, mmap.PAGESIZE // row_bytes)
    pages = np.concatenate([np.add.reduceat(table, np.arange(0, len(table), rows)) for table in tables if len(table)])
    values, alike = np.unique(pages[pages > 0], return_counts=True)  # of many pages few differ
    often, most = values / (values @ alike), room / (rows * row_bytes)
    if alike.sum() <= most:
        return 0.0
    alike = np.diff(np.minimum(np.cumsum(alike), alike.sum() - HOT * most), prepend=0.0)  # those that are not hot
    most *= 1.0 - HOT
    low, high = 0.0, 1.0 / often.min() * 100
    for _ in range(HALVINGS):  # the time, in lookups, after which so many pages have been used
        time = (low + high) / 2
        low, high = (time, high) if -(alike @ np.expm1(-often * time)) < most else (low, time)
    return float((alike * often) @ np.exp(-often * low))
