"""Pass 2, second half: collect each shard's rows from all pieces, permute them and write the shard.

A shard's rows are sorted by random keys of their row numbers (or by row number where order is kept), so it does not
matter who collected them. Finished shards are kept over a restart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numba import njit

from data_prep.files import Json, file_checksum
from data_prep.options import RECORD_BYTES, TRANSFORM, Job
from data_prep.progress import Progress
from data_prep.scatter import DENSE_AT, IDS_AT, LABEL_AT, RECORD_INTS, ROW_AT, Placed
from data_prep.scratch import Scratch
from data_prep.splits import Layout, Target, order_keys
from ssmpi.data.schema import DENSE_FEATURES, SPARSE_FEATURES, ShardEntry, write_shard


@dataclass(frozen=True)
class Written:
    """A finished shard: its split, its manifest entry and what tells whether the file is as it was written."""

    split: str
    entry: ShardEntry
    file_checksum: Json


@dataclass
class Collector:
    """Reads the rows of one shard out of all grouped pieces; ``starts`` uint32 (pieces, shards + 1)."""

    work: Path
    placed: Sequence[Placed]
    starts: np.ndarray
    scratch: Scratch = field(default_factory=Scratch)

    def rows_of(self, shard: int) -> int:
        """How many rows the shard has."""
        return int((self.starts[:, shard + 1] - self.starts[:, shard]).sum(dtype=np.int64))

    def collect(self, shard: int) -> tuple[np.ndarray, np.ndarray]:
        """(records int32 (rows, 41), row numbers over all sources int64 (rows,)), in input order."""
        records = self.scratch.array("records", (self.rows_of(shard), RECORD_INTS), np.int32)
        numbers = np.empty(len(records), dtype=np.int64)
        at = 0
        for placed, starts in zip(self.placed, self.starts, strict=True):
            start, stop = int(starts[shard]), int(starts[shard + 1])
            if start == stop:
                continue
            into = records[at : at + stop - start]
            path = placed.path(self.work)
            with path.open("rb") as file:
                file.seek(path.stat().st_size - (int(starts[-1]) - start) * RECORD_BYTES)
                read = file.readinto(into.reshape(-1).view(np.uint8).data)
            assert read == into.nbytes, f"{path} is not whole"
            numbers[at : at + stop - start] = into[:, ROW_AT].astype(np.int64) + placed.first_row
            at += stop - start
        return records, numbers


@njit(cache=True, nogil=True)
def _pick(records: np.ndarray, order: np.ndarray, ids: np.ndarray, dense: np.ndarray, label: np.ndarray) -> None:
    for i in range(order.size):
        record = records[order[i]]
        for f in range(SPARSE_FEATURES):
            ids[i, f] = record[IDS_AT + f]
        for f in range(DENSE_FEATURES):
            dense[i, f] = record[DENSE_AT + f]
        label[i] = record[LABEL_AT]


def write_shards(
    job: Job, placed: Sequence[Placed], layout: Layout, cardinalities: Sequence[int], data_set: str
) -> list[Written]:
    """Write the shards that are not there yet; all of them are returned, in order, on every rank."""
    targets = layout.targets()
    placed = [one for one in placed if one.record.rows]

    def body() -> list[tuple[int, Written]]:
        starts = np.empty((len(placed), len(targets) + 1), dtype=np.uint32)
        for i, one in enumerate(placed):
            starts[i] = np.load(one.offsets_path(job.work))
        collector = Collector(job.work, placed, starts)
        named = _named(targets, collector)
        mine = named[job.ranks.rank :: job.ranks.size]
        written = []
        with Progress(job.ranks, "pass 2: shards", len(mine), " shards") as progress:
            for target, file in mine:
                attributes = _attributes(target, layout, cardinalities, data_set)
                written.append((target.index, _finish(job, collector, target, file, attributes)))
                progress.advance(1, written[-1][1].entry.rows)
        return written

    gathered = job.ranks.allgather(job.ranks.together(body))
    return [one for _, one in sorted((pair for some in gathered for pair in some), key=lambda pair: pair[0])]


def _named(targets: Sequence[Target], collector: Collector) -> list[tuple[Target, str]]:
    """File names, numbered within each split over the shards that have rows."""
    named, numbers = [], dict[str, int]()
    for target in targets:
        if collector.rows_of(target.index):
            number = numbers.get(target.split, 0)
            numbers[target.split] = number + 1
            named.append((target, f"{target.split}/shard-{number:05d}.h5"))
    return named


def _attributes(target: Target, layout: Layout, cardinalities: Sequence[int], data_set: str) -> dict[str, Any]:
    return {
        "data_set": data_set,
        "split": target.split,
        "source_rows": list(target.rows),
        "cardinalities": list(cardinalities),
        "transform": TRANSFORM,
        "seed": layout.seed,
        "shuffled": int(target.shuffled),
    }


def _finish(job: Job, collector: Collector, target: Target, file: str, attributes: dict[str, Any]) -> Written:
    path = job.options.output / file
    entry = _found(path, file, attributes["data_set"])
    if entry is None:
        records, numbers = collector.collect(target.index)
        order = _permutation(attributes["seed"], numbers) if target.shuffled else np.arange(len(numbers))
        ids = collector.scratch.array("ids", (len(order), SPARSE_FEATURES), np.int32)
        dense = collector.scratch.array("dense", (len(order), DENSE_FEATURES), np.int32)
        label = np.empty(len(order), dtype=np.uint8)
        _pick(records, order, ids, dense, label)
        positives = int(np.count_nonzero(label))
        attributes = attributes | {"rows": len(order), "positives": positives}
        size, total = write_shard(path, ids, dense.view(np.float32), label if job.labelled else None, attributes)
        entry = ShardEntry(file, len(order), positives, size, total)
    return Written(target.split, entry, _frame(path))


def _frame(path: Path) -> dict[str, Json]:
    """Where a shard's columns lie, and the checksum of the bytes around them: the columns have one of their own."""
    with h5py.File(path, "r", locking=False) as shard:
        columns = sorted([c.id.get_offset(), c.id.get_storage_size()] for c in shard.values() if c.size)
    return {"columns": columns, "frame": file_checksum(path, columns)}


def _permutation(seed: int, numbers: np.ndarray) -> np.ndarray:
    keys = np.empty(len(numbers), dtype=np.uint64)
    order_keys(seed, numbers, keys)
    order = np.argsort(keys)
    in_order = keys[order]
    if (in_order[1:] == in_order[:-1]).any():  # the fast sort may order equal keys differently from machine to machine
        order = np.argsort(keys, kind="stable")
    return order


def _found(path: Path, file: str, data_set: str) -> ShardEntry | None:
    """The entry of a shard that an interrupted run of the same data set has finished."""
    if not path.is_file():
        return None
    with h5py.File(path, "r", locking=False) as shard:
        about = dict(shard.attrs)
    assert about["data_set"] == data_set, f"{path} is of another data set"
    return ShardEntry(file, int(about["rows"]), int(about["positives"]), path.stat().st_size, str(about["checksum"]))
