"""How often lookups miss memory where rows lie on a disk (``embedding.storage``): from how often each id occurs."""

from __future__ import annotations

import json
import mmap
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from ssmpi.config import Config
from ssmpi.data.schema import VOCABULARY_NAME
from ssmpi.runtime.errors import DataError
from ssmpi.runtime.files.hdf5 import UNREADABLE, opened
from ssmpi.tools.units import in_units

READ_SECONDS = 100e-6  # assumed: of a page from a local SSD
HALVINGS = 60


def describe(config: Config, row_bytes: int, room: float) -> str:
    """Which share of lookups misses ``room`` bytes of memory, and how fast a thread can be then at most."""
    data = Path(config.data.folder)
    counts, examples = occurrences(data)
    if not counts:
        return f"rows on disk: lookups that miss memory are not known without counts of all ids in {VOCABULARY_NAME}"
    share = missed(counts, row_bytes, room)
    if not (misses := share * sum(int(table.sum()) for table in counts) / examples):
        return f"rows on disk: all of them fit in the {in_units(room)} of memory that are left for them"
    return (
        f"rows on disk: with {in_units(room)} of memory left for them {share:.2%} of the lookups have to read,"
        f" {misses:.3g} an example: at most {1 / (misses * READ_SECONDS):,.0f} examples/s a thread, if a read takes"
        f" {READ_SECONDS * 1e6:.0f} µs"
    )


def occurrences(data: Path) -> tuple[list[np.ndarray], int]:
    """Of each feature, how often its ids occur, int64 (ids,), in the order of their rows, and in how many examples. The
    first is that of missing and of rare tokens. Empty if a feature has no such counts: its ids are hashed, or keys.
    DataError if the vocabulary is damaged.
    """
    if not (path := data / VOCABULARY_NAME).is_file():
        return [], 0
    try:
        with opened(path) as file:
            about = json.loads(file.attrs["about"])
            if about["max_ind_range"] or about.get("hashed") or about.get("keyed"):
                return [], 0
            examples, found = int(about["fitted_rows"]), [group["count"][:] for group in file.values()]
    except UNREADABLE as error:
        raise DataError(f"{path}: cannot be read ({error}); prepare the data again") from error
    return [np.concatenate([[max(0, examples - each.sum())], each]) for each in found], examples


def missed(counts: Iterable[np.ndarray], row_bytes: int, room: float) -> float:
    """The share of lookups whose page is not among the ``room / PAGESIZE`` ones used last, if ids come independently,
    by the approximation of Che, Tung and Wang (2002), in which every page stays for the same time. ``counts`` are those
    of the ids of each table.
    """
    rows = max(1, mmap.PAGESIZE // row_bytes)
    pages = np.concatenate([np.add.reduceat(table, np.arange(0, len(table), rows)) for table in counts if len(table)])
    often, most = pages[pages > 0] / pages.sum(), room / mmap.PAGESIZE
    if len(often) <= most:
        return 0.0
    low, high = 0.0, 1.0 / often.min() * 100
    for _ in range(HALVINGS):  # the time, in lookups, after which so many pages have been used
        time = (low + high) / 2
        low, high = (time, high) if -np.expm1(-often * time).sum() < most else (low, time)
    return float(often @ np.exp(-often * low))
