"""Invalid values in shards: numbers that are not finite, labels other than 0 and 1, ids outside their tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from ssmpi.data.schema import DatasetManifest
from ssmpi.data.shard_columns import Columns, Lists


def bad_values(columns: Columns, manifest: DatasetManifest, first: int = 0) -> Iterator[str]:
    """The first impossible value of each sort, in words, with its row in the shard: ``columns`` begin with the row
    ``first``.
    """
    yield from _bad_ids(columns, manifest, first)
    if columns.lists:
        yield from _bad_lists(columns.lists, manifest, first)
    dense, label = columns.dense, columns.label
    if not (finite := np.isfinite(dense)).all():
        rows, places = np.nonzero(~finite)
        name = manifest.features.dense[places[0]]
        yield f"row {first + rows[0]}: {name} is {dense[rows[0], places[0]]}{times(len(rows))}"
    if label is not None and len(rows := np.flatnonzero(label > 1)):
        yield f"row {first + rows[0]}: label {label[rows[0]]} is not 0 or 1{times(len(rows))}"


def _bad_ids(columns: Columns, manifest: DatasetManifest, first: int) -> Iterator[str]:
    ids, names = columns.ids, manifest.features.one_id
    limits = _limits(names, manifest)
    if (outside := _outside(ids, limits)).any():
        rows, places = np.nonzero(outside)
        row, f = int(rows[0]), int(places[0])
        yield f"row {first + row}: id {ids[row, f]} of {names[f]} is outside [0, {limits[f]}){times(len(rows))}"


def _bad_lists(lists: Lists, manifest: DatasetManifest, first: int) -> Iterator[str]:
    names, of = manifest.features.list_names, lists.features
    limits = _limits(names, manifest)
    if len(bad := np.flatnonzero(_outside(lists.ids, limits[of]))):
        f = of[bad[0]]
        what = f"id {lists.ids[bad[0]]} of {names[f]} is outside [0, {limits[f]})"
        yield f"row {first + _row_of(lists, bad[0])}: {what}{times(len(bad))}"
    if lists.weights is not None and len(bad := np.flatnonzero(~np.isfinite(lists.weights))):
        what = f"a weight of {names[of[bad[0]]]} is {lists.weights[bad[0]]}"
        yield f"row {first + _row_of(lists, bad[0])}: {what}{times(len(bad))}"


def _outside(ids: np.ndarray, limits: np.ndarray) -> np.ndarray:
    """Whether each id is below 0 or not below its limit; an empty table has the id 0. One comparison does both."""
    found: np.ndarray = ids.view(np.uint32) >= np.maximum(limits, 1)
    return found


def _limits(names: Sequence[str], manifest: DatasetManifest) -> np.ndarray:
    """The cardinalities of some sparse features, uint32 as ids are compared with them."""
    of = dict(zip(manifest.features.sparse, manifest.cardinalities, strict=True))
    return np.array([of[name] for name in names], np.uint32)


def _row_of(lists: Lists, at: int) -> int:
    """The row whose lists the id at a place is in."""
    return int(np.searchsorted(lists.ends[:, -1], at, side="right"))


def times(count: int) -> str:
    """How many such values there are, after the first of them was named; empty if it is the only one."""
    return f" (the first of {count:,} such values)" if count > 1 else ""
