"""The columns of a shard: names, dtypes, shapes and checksum."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ssmpi.data.features import Features
from ssmpi.runtime.errors import DataError

Kinds = dict[str, tuple[str, tuple[int, ...]]]  # dtype and shape of each column, by name


@dataclass(frozen=True)
class Lists:
    """The list features of some rows: all ids of a row, list after list in the order of the features, then those of the
    next row. ``ids`` int32 (ids,); ``ends`` int64 (rows, lists): where each list ends in ``ids``; ``weights`` float32
    (ids,) if a list is weighted (1 for ids of other lists), else None. DataError if they do not fit together.
    """

    ids: np.ndarray
    ends: np.ndarray
    weights: np.ndarray | None = None

    def __post_init__(self) -> None:
        flat = self.ends.reshape(-1)
        last = int(flat[-1]) if flat.size else 0
        if last != len(self.ids) or (np.diff(flat, prepend=0) < 0).any():
            raise DataError(f"the ends of lists do not ascend from 0 to their {len(self.ids):,} ids")
        if self.weights is not None and len(self.weights) != len(self.ids):
            raise DataError(f"{len(self.weights):,} weights for {len(self.ids):,} ids of lists")

    @property
    def lengths(self) -> np.ndarray:
        """How many ids each list has, int64 (rows, lists)."""
        return np.diff(self.ends.reshape(-1), prepend=0).reshape(self.ends.shape)

    @property
    def features(self) -> np.ndarray:
        """Of which list feature each id is, int64 (ids,)."""
        rows, lists = self.ends.shape
        return np.repeat(np.tile(np.arange(lists), rows), self.lengths.reshape(-1))


@dataclass(frozen=True)
class Columns:
    """ids int32 (rows, features with one id); dense float32 (rows, dense); label uint8 (rows,) or None; ``lists`` None
    if no feature is a list; keys int64 (rows, keyed features), None if no feature is keyed.
    """

    ids: np.ndarray
    dense: np.ndarray
    label: np.ndarray | None = None
    lists: Lists | None = None
    keys: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.dense)

    def named(self) -> dict[str, np.ndarray]:
        """The columns by name, in the order of the checksum."""
        found = {"ids": self.ids, "dense": self.dense, "label": self.label}
        if self.lists:
            lists = self.lists
            found |= {"list_ends": lists.ends, "list_ids": lists.ids, "list_weights": lists.weights}
        found["keys"] = self.keys
        return {name: column for name, column in found.items() if column is not None}

    @property
    def checksum(self) -> str:
        """SHA-256, first 128 bits, over the little-endian C-order bytes of the columns: the same everywhere.

        Processors have instructions for SHA-256: here it is twice as fast as BLAKE2b.
        """
        digest = hashlib.sha256()
        for column in self.named().values():
            digest.update(np.ascontiguousarray(column).data)
        return digest.hexdigest()[:32]


def kinds(features: Features, rows: int, list_ids: int, *, labelled: bool) -> Kinds:
    """What a shard of so many rows, with so many ids in lists, has to hold, in the order of the checksum."""
    found: Kinds = {
        "ids": ("int32", (rows, len(features.one_id))),
        "dense": ("float32", (rows, len(features.dense))),
    }
    if labelled:
        found["label"] = ("uint8", (rows,))
    if features.lists:
        found |= {"list_ends": ("int64", (rows, len(features.lists))), "list_ids": ("int32", (list_ids,))}
    if features.weighted:
        found["list_weights"] = ("float32", (list_ids,))
    if features.keyed:
        found["keys"] = ("int64", (rows, len(features.keyed)))
    return found


def read_columns(shard: Mapping[str, Any], start: int, stop: int) -> Columns:
    """Rows ``start`` to ``stop`` of an open shard; DataError if its lists do not fit together."""
    rows = slice(start, stop)
    label = shard["label"][rows] if "label" in shard else None
    keys = shard["keys"][rows] if "keys" in shard else None
    return Columns(shard["ids"][rows], shard["dense"][rows], label, _read_lists(shard, start, stop), keys)


def _read_lists(shard: Mapping[str, Any], start: int, stop: int) -> Lists | None:
    if "list_ends" not in shard:
        return None
    ends = shard["list_ends"][start:stop]
    first = int(shard["list_ends"][start - 1, -1]) if start else 0
    last = int(ends[-1, -1]) if len(ends) else first
    weights = shard["list_weights"][first:last] if "list_weights" in shard else None
    return Lists(shard["list_ids"][first:last], ends - first, weights)
