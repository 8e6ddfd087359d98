"""Pass 2, second half: collect each shard's rows from all pieces, permute them and write the shard.

A shard's rows are collected in input order, and the permutation depends on seed and shard alone, so any rank can
collect them. Finished shards are kept over a restart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from data_prep.files import Publisher
from data_prep.preparation import Preparation, RowFormat
from data_prep.progress import ProgressBar
from data_prep.scratch import Scratch
from data_prep.shards.packing import SLACK, row_bytes, unpack
from data_prep.shards.scatter import PlacedPiece
from data_prep.shards.shard_layout import PlannedShard, ShardLayout, permutation
from ssmpi.data.columns import read_rows
from ssmpi.data.schema import ShardEntry, lay_out_shard
from ssmpi.data.shard_columns import Columns
from ssmpi.data.shard_frame import Frame, frame_of
from ssmpi.files import atomic_file


@dataclass(frozen=True)
class WrittenShard:
    """A finished shard: its split, its manifest entry and the checksum of the file's frame."""

    split: str
    entry: ShardEntry
    frame: Frame


@dataclass
class Collector:
    """Reads the rows of one shard from all grouped pieces; ``starts`` uint32 (pieces, shards + 1)."""

    work: Path
    of: RowFormat
    placed: Sequence[PlacedPiece]
    starts: np.ndarray
    wide: np.ndarray
    publisher: Publisher
    scratch: Scratch = field(default_factory=Scratch)

    def rows_of(self, shard: int) -> int:
        """The number of rows of a shard."""
        return int((self.starts[:, shard + 1] - self.starts[:, shard]).sum(dtype=np.int64))

    def collect(self, shard: int) -> np.ndarray:
        """The packed rows of a shard in input order, padded: uint8 (rows * row_bytes + SLACK,)."""
        size = row_bytes(self.wide)
        packed = self.scratch.array("packed", (self.rows_of(shard) * size + SLACK,), np.uint8)
        at = 0
        for placed, starts in zip(self.placed, self.starts, strict=True):
            start, stop = int(starts[shard]) * size, int(starts[shard + 1]) * size
            if start == stop:
                continue
            path = placed.path(self.work)
            with atomic_file.naming(path), path.open("rb", buffering=0) as file:
                read_rows(file, start, 0, packed[at : at + stop - start])
            at += stop - start
        return packed

    def columns(self, target: PlannedShard, seed: int, labelled: bool) -> Columns:
        """A shard's columns, in final order; valid until the next ones are asked for."""
        rows, features = self.rows_of(target.index), self.of.features
        order = permutation(seed, target.index, rows) if target.shuffled else np.arange(rows, dtype=np.uint32)
        ids = self.scratch.array("ids", (rows, len(features.one_id)), np.int32)
        keys = self.scratch.array("keys", (rows, len(features.keyed)), np.int64)
        dense = self.scratch.array("dense", (rows, len(features.dense)), np.float32)
        label = self.scratch.array("label", (rows,), np.uint8)
        unpack(self.collect(target.index), order, self.wide, (ids, keys, dense, label), self.of.packs_floats)
        return Columns(ids, dense, label if labelled else None, keys=keys if features.keyed else None)


def write_shards(
    job: Preparation, placed: Sequence[PlacedPiece], layout: ShardLayout, wide: np.ndarray, common: dict[str, Any]
) -> list[WrittenShard]:
    """Write the shards that do not exist yet; returns all shards, in order, on every rank.

    ``wide``: widths of the packed columns; ``common``: attributes of all shards, including ``data_set``.
    """
    targets = layout.targets()
    placed = [one for one in placed if one.record.rows]

    def body() -> list[tuple[int, WrittenShard]]:
        starts = np.empty((len(placed), len(targets) + 1), dtype=np.uint32)
        for i, one in enumerate(placed):
            starts[i] = one.offsets(job.work)
        written = []
        with Publisher() as publisher:
            collector = Collector(job.work, job.format, placed, starts, wide, publisher)
            mine = _named(targets, collector)[job.ranks.rank :: job.ranks.size]
            with ProgressBar(job.ranks, "shards", len(mine), " shards") as progress:
                for target, file in mine:
                    attributes = common | _attributes(target, layout, job.format.transform)
                    written.append((target.index, _finish(job, collector, target, file, attributes)))
                    progress.advance(1, written[-1][1].entry.rows)
            publisher.wait()
        return written

    gathered = job.ranks.allgather(job.ranks.together(body))
    return [one for _, one in sorted((pair for some in gathered for pair in some), key=lambda pair: pair[0])]


def _named(targets: Sequence[PlannedShard], collector: Collector) -> list[tuple[PlannedShard, str]]:
    """File names, numbered within each split over the shards that have rows."""
    named, numbers = [], dict[str, int]()
    for target in targets:
        if collector.rows_of(target.index):
            number = numbers.get(target.split, 0)
            numbers[target.split] = number + 1
            named.append((target, f"{target.split}/shard-{number:05d}.h5"))
    return named


def _attributes(target: PlannedShard, layout: ShardLayout, transform: str) -> dict[str, Any]:
    return {
        "split": target.split,
        "source_rows": list(target.rows),
        "transform": transform,
        "seed": layout.seed,
        "shuffled": int(target.shuffled),
    }


def _finish(
    job: Preparation, collector: Collector, target: PlannedShard, file: str, attributes: dict[str, Any]
) -> WrittenShard:
    path = job.options.output / file
    entry = _found(path, file, attributes["data_set"])
    if entry is not None:
        return WrittenShard(target.split, entry, frame_of(path))
    columns = collector.columns(target, attributes["seed"], job.labelled)
    positives = 0 if columns.label is None else int(np.count_nonzero(columns.label))
    attributes = attributes | {"rows": len(columns), "positives": positives}
    beside = path.with_name(f".{path.name}.tmp")
    with atomic_file.naming(path):
        total = lay_out_shard(beside, columns, attributes)
    entry = ShardEntry(file, len(columns), positives, beside.stat().st_size, total)
    frame = frame_of(beside)
    collector.publisher.publish(beside, path)
    return WrittenShard(target.split, entry, frame)


def _found(path: Path, file: str, data_set: str) -> ShardEntry | None:
    """The entry of a shard that an interrupted run of the same data set finished."""
    if not path.is_file():
        return None
    with h5py.File(path, "r", locking=False) as shard:
        about = dict(shard.attrs)
    assert about["data_set"] == data_set, f"{path} is of another data set"
    return ShardEntry(file, int(about["rows"]), int(about["positives"]), path.stat().st_size, str(about["checksum"]))
