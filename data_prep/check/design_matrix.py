"""A prepared data set as sparse matrices, for regressions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ssmpi.data.schema import Manifest, open_shard
from ssmpi.data.shard_columns import Columns, Lists, read_columns


class DesignRows(NamedTuple):
    """Some rows: ``matrix`` float32 (rows, sum of cardinalities + dense) in compressed sparse row format, label uint8
    (rows,).
    """

    matrix: Any
    label: np.ndarray


class DesignMatrix:
    """A column for each id of each feature, one after the other, and for each dense feature, standardised by mean and
    deviation of the training rows. An id of a list counts as its pooling says: 1, its weight, or in a mean one divided
    by the length of the list; more than once, it adds up. ``values``: ids and numbers of all training rows.
    """

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.folder, self.manifest = folder, manifest
        self._first = np.concatenate([[0], np.cumsum(manifest.cardinalities)])  # columns of the features' ids 0
        features, train = manifest.features, manifest.split("train")
        self.values = train.rows * (len(features.one_id) + len(features.dense))
        self.values += sum(entry.list_ids for entry in train.shards)
        total, squares = np.zeros(len(features.dense)), np.zeros(len(features.dense))
        for shard, _ in self._opened("train"):
            dense = shard["dense"][:].astype(np.float64)
            total, squares = total + dense.sum(axis=0), squares + (dense**2).sum(axis=0)
        deviation = np.sqrt(np.maximum(squares / train.rows - (total / train.rows) ** 2, 0))
        self.mean, self.deviation = total / train.rows, np.where(deviation > 0, deviation, 1.0)

    def shards(self, split: str, share: float = 1.0) -> Iterator[DesignRows]:
        """The rows of a split, shard by shard, or the first ones, so large a ``share`` of each."""
        for shard, count in self._opened(split):
            rows = read_columns(shard, 0, int(np.ceil(share * count)))
            assert rows.label is not None
            yield DesignRows(self.matrix(rows), rows.label)

    def head(self, split: str, rows: int) -> DesignRows:
        """About ``rows`` rows of a split, the same share of every shard."""
        from scipy.sparse import vstack

        parts = list(self.shards(split, min(1.0, rows / self.manifest.split(split).rows)))
        return DesignRows(
            vstack([part.matrix for part in parts], "csr"), np.concatenate([part.label for part in parts])
        )

    def matrix(self, rows: Columns) -> Any:
        """The matrix of rows that were read."""
        from scipy.sparse import csr_matrix

        features, count = self.manifest.features, len(rows)
        one_id = rows.ids + self._first[[features.sparse.index(name) for name in features.one_id]]
        dense = np.broadcast_to(self._first[-1] + np.arange(len(features.dense)), rows.dense.shape)
        standard = (rows.dense - self.mean) / self.deviation
        found = [_entries(np.ones(one_id.shape), one_id), _entries(standard, dense)]
        if rows.lists:
            found.append(self._listed(rows.lists))
        values, row, column = (np.concatenate(parts) for parts in zip(*found, strict=True))
        return csr_matrix((values, (row, column)), shape=(count, self._first[-1] + len(features.dense)))

    def _listed(self, lists: Lists) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """As ``_entries``, of the ids of lists."""
        features, lengths = self.manifest.features, lists.lengths
        names = features.list_names
        means = np.array([features.lists[name].pooling == "mean" for name in names])
        values = np.repeat(np.where(means, 1.0 / np.maximum(lengths, 1), 1.0).reshape(-1), lengths.reshape(-1))
        if lists.weights is not None:
            values *= lists.weights
        first = self._first[[features.sparse.index(name) for name in names]]
        row = np.repeat(np.arange(len(lengths), dtype=np.int32), lengths.sum(axis=1))
        return values.astype(np.float32), row, (lists.ids + first[lists.features]).astype(np.int32)

    def _opened(self, split: str) -> Iterator[tuple[Any, int]]:
        """The shards of a split that have rows, and how many."""
        for entry in self.manifest.split(split).shards:
            if entry.rows:
                with open_shard(self.folder, entry, self.manifest) as shard:
                    yield shard, entry.rows


def _entries(values: np.ndarray, columns: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of ``values`` and their ``columns`` (rows, ...): values float32, rows and columns int32, (entries,) each."""
    row = np.repeat(np.arange(len(values), dtype=np.int32), values.shape[1])
    return values.astype(np.float32).reshape(-1), row, columns.astype(np.int32).reshape(-1)
