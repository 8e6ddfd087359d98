"""Pass 2, second half: collect each shard's rows from all pieces, permute them and write the shard.

A shard's rows are collected in input order, and the permutation depends on seed and shard alone, so any rank can
collect them. Finished shards are kept over a restart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from data_prep.files import Publisher
from data_prep.preparation import Preparation
from data_prep.progress import ProgressBar
from data_prep.shards.packing import SLACK, Scratch, item_type, permute, row_bytes, unpack, without_weights
from data_prep.shards.scatter import GroupedFile, PlacedPiece
from data_prep.splits import PlannedShard, ShardLayout, permutation
from ssmpi.data.columns import read_rows
from ssmpi.data.hdf5_file import Frame, frame_of
from ssmpi.data.schema import ShardEntry, lay_out_shard
from ssmpi.data.shard_columns import Columns, Lists
from ssmpi.runtime.files import atomic_file


@dataclass(frozen=True)
class WrittenShard:
    """A finished shard: its split, its manifest entry, the checksum of the file's frame, and how many ids its rows have
    of each list feature.
    """

    split: str
    entry: ShardEntry
    frame: Frame
    listed: tuple[int, ...]


class GroupedFiles:
    """Of all pieces what is grouped by shard, in items of ``size`` bytes; ``starts`` unsigned (pieces, shards + 1)."""

    def __init__(self, files: Sequence[GroupedFile], size: int) -> None:
        self._files, self._size = files, size
        self._starts = np.stack([file.starts() for file in files])

    def count(self, shard: int) -> int:
        """The number of items of a shard."""
        return int((self._starts[:, shard + 1] - self._starts[:, shard]).sum(dtype=np.int64))

    def read(self, shard: int, out: np.ndarray) -> None:
        """Read those of a shard, in input order, into ``out`` uint8."""
        at = 0
        for grouped, starts in zip(self._files, self._starts, strict=True):
            start, stop = int(starts[shard]) * self._size, int(starts[shard + 1]) * self._size
            if start == stop:
                continue
            with atomic_file.naming(grouped.path), grouped.path.open("rb", buffering=0) as file:
                read_rows(file, start, 0, out[at : at + stop - start])
            at += stop - start


class Collector:
    """Makes the columns of one shard of what pieces have for it."""

    def __init__(self, job: Preparation, placed: Sequence[PlacedPiece], wide: np.ndarray, publisher: Publisher) -> None:
        self.publisher = publisher
        self._of, self._wide, self._labelled, self._scratch = job.format, wide, job.format.labelled, Scratch()
        self._rows = GroupedFiles([one.rows(job.work) for one in placed], row_bytes(wide))
        if job.format.features.lists:
            self._item = item_type(job.format.features)
            self._ids = GroupedFiles([one.lists(job.work) for one in placed], np.dtype(self._item).itemsize)

    def rows_of(self, shard: int) -> int:
        """The number of rows of a shard."""
        return self._rows.count(shard)

    def columns(self, target: PlannedShard, seed: int) -> Columns:
        """A shard's columns, in final order; valid until the next ones are asked for."""
        rows, features, array = self.rows_of(target.index), self._of.features, self._scratch.array
        order = permutation(seed, target.index, rows) if target.shuffled else np.arange(rows, dtype=np.uint32)
        packed = array("packed", (rows * row_bytes(self._wide) + SLACK,), np.uint8)
        self._rows.read(target.index, packed)
        with_ids = len(features.one_id)
        ids = array("ids", (rows, with_ids + len(features.lists)), np.int32)  # lengths in place of ids of lists
        keys = array("keys", (rows, len(features.keyed)), np.int64)
        dense = array("dense", (rows, len(features.dense)), np.float32)
        label = array("label", (rows,), np.uint8)
        unpack(packed, order, self._wide, (ids, keys, dense, label), self._of.packs_floats)
        lists = self._lists(target.index, order, ids[:, with_ids:]) if features.lists else None
        found = label if self._labelled else None
        return Columns(np.ascontiguousarray(ids[:, :with_ids]), dense, found, lists, keys if features.keyed else None)

    def _lists(self, shard: int, order: np.ndarray, lengths: np.ndarray) -> Lists:
        """The lists of a shard's rows in ``order``, of ``lengths`` int32 (rows, lists)."""
        count = self._ids.count(shard)
        read, items = (self._scratch.array(name, (count,), self._item) for name in ("lists read", "lists"))
        self._ids.read(shard, read.view(np.uint8))
        permute(read, order, lengths.sum(axis=1, dtype=np.int64), items)
        ids, weights = without_weights(items)
        return Lists(ids, np.cumsum(lengths, dtype=np.int64).reshape(lengths.shape), weights)


def write_shards(
    job: Preparation, placed: Sequence[PlacedPiece], layout: ShardLayout, wide: np.ndarray, common: dict[str, Any]
) -> list[WrittenShard]:
    """Write the shards that do not exist yet; returns all shards, in order, on every rank.

    ``wide``: widths of the packed columns; ``common``: attributes of all shards, including ``data_set``.
    """
    targets = layout.targets()
    placed = [one for one in placed if one.record.rows]

    def body() -> list[tuple[int, WrittenShard]]:
        written = []
        with Publisher() as publisher:
            collector = Collector(job, placed, wide, publisher)
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
    if found := _found(path, file, attributes["data_set"]):
        return WrittenShard(target.split, found[0], frame_of(path), found[1])
    columns = collector.columns(target, attributes["seed"])
    positives = 0 if columns.label is None else int(np.count_nonzero(columns.label))
    attributes = attributes | {"rows": len(columns), "positives": positives}
    listed: tuple[int, ...] = ()
    if columns.lists:
        listed = tuple(columns.lists.lengths.sum(axis=0).tolist())
        attributes["list_ids"] = list(listed)
    beside = path.with_name(f".{path.name}.tmp")
    beside.unlink(missing_ok=True)  # else a link that lies there would be followed
    with atomic_file.naming(path):
        total = lay_out_shard(beside, columns, attributes)
    entry = ShardEntry(file, len(columns), positives, beside.stat().st_size, total, sum(listed))
    frame = frame_of(beside)
    collector.publisher.publish(beside, path)
    return WrittenShard(target.split, entry, frame, listed)


def _found(path: Path, file: str, data_set: str) -> tuple[ShardEntry, tuple[int, ...]] | None:
    """The entry of a shard that an interrupted run of the same data set finished, and its ids of each list feature."""
    if not path.is_file():
        return None
    with h5py.File(path, "r", locking=False) as shard:
        about = dict(shard.attrs)
    assert about["data_set"] == data_set, f"{path} is of another data set"
    size, checksum = path.stat().st_size, str(about["checksum"])
    listed = tuple(int(count) for count in about.get("list_ids", ()))
    return ShardEntry(file, int(about["rows"]), int(about["positives"]), size, checksum, sum(listed)), listed
