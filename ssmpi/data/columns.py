"""Reads the contents of a shard without HDF5, which holds the GIL while it reads: rows for a worker thread, or all rows
to check their values and the checksum in the manifest.
"""

from __future__ import annotations

import hashlib
from io import FileIO
from pathlib import Path

import numpy as np

from ssmpi.data.schema import MAKE_AGAIN, DatasetManifest, ShardEntry, open_shard
from ssmpi.data.shard_columns import Columns, Lists, kinds
from ssmpi.data.values import bad_values
from ssmpi.runtime.errors import DamageError, DataError

SLICE = 1 << 24  # bytes read and hashed at a time, both without the GIL
REPAIR = "correct or leave out such rows where the data comes from, then prepare the data again"

Extents = dict[str, tuple[int, int]]


def extents(folder: Path, entry: ShardEntry, manifest: DatasetManifest) -> Extents:
    """Where in its file each column of a shard lies, offset and bytes by name, in the order of the checksum, once it
    has been checked to be the one in the manifest; DataError if it is not, or its columns are not contiguous.
    """
    with open_shard(folder, entry, manifest) as shard:
        columns = {name: shard[name].id for name in kinds(manifest.features, 0, 0, labelled=manifest.labelled)}
        found = {name: (column.get_offset(), column.get_storage_size()) for name, column in columns.items()}
    if any(size and offset is None for offset, size in found.values()):
        raise DamageError(folder / entry.file, "its columns are not contiguous", MAKE_AGAIN)
    return {name: (offset or 0, size) for name, (offset, size) in found.items()}


class ListError(ValueError):
    """The ends of lists make no sense."""


def check_span(first: int, start: int, stop: int, places: Extents) -> None:
    """Raise ListError unless the rows from ``first`` on may have the ids of lists from ``start`` to ``stop``."""
    if not 0 <= start <= stop <= places["list_ids"][1] // 4:
        raise ListError(f"the lists of its rows from {first} on end at {start:,} and {stop:,}")


def read_rows(file: FileIO, offset: int, first: int, out: np.ndarray) -> None:
    """Fill ``out`` with rows of a column that begins at ``offset``, from its row ``first`` on; OSError if there are
    not as many.
    """
    if not out.nbytes:
        return
    file.seek(offset + first * (out.nbytes // len(out)))
    left = out.reshape(-1).view(np.uint8).data
    while left.nbytes:
        count = file.readinto(left)
        if not count:
            raise OSError(f"the file ends {left.nbytes:,} bytes too early")
        left = left[count:]


def check(folder: Path, entry: ShardEntry, manifest: DatasetManifest) -> None:
    """Read a whole shard and raise DamageError unless its columns have the checksum of the manifest and hold values
    that can be trained on.
    """
    path, places = folder / entry.file, extents(folder, entry, manifest)
    try:
        with path.open("rb", buffering=0) as file:
            if _checksum(file, places) != entry.checksum:
                found = "damaged: the checksum of its columns is not the one in the manifest"
                raise DamageError(path, found, MAKE_AGAIN)
            step = max(1, entry.rows * SLICE // max(1, sum(size for _, size in places.values())))
            for first in range(0, entry.rows, step):  # a second time, because a checksum takes column after column
                rows = _columns(file, places, range(first, min(first + step, entry.rows)), manifest)
                for found in bad_values(rows, manifest, first):
                    raise DamageError(path, found, REPAIR)
    except OSError as error:
        raise DamageError(path, f"cannot be read ({error})", f"look at its disk, or {MAKE_AGAIN}") from error
    except ListError as error:
        raise DamageError(path, str(error), MAKE_AGAIN) from error


def _checksum(file: FileIO, places: Extents) -> str:
    digest, buffer = hashlib.sha256(), memoryview(bytearray(SLICE))
    for offset, size in places.values():
        if size:
            file.seek(offset)
        while size and (count := file.readinto(buffer[: min(size, SLICE)])):
            digest.update(buffer[:count])
            size -= count
    return digest.hexdigest()[:32]


def _columns(file: FileIO, places: Extents, rows: range, manifest: DatasetManifest) -> Columns:
    """Some rows of a shard; ListError if their lists do not fit together."""
    wanted = kinds(manifest.features, len(rows), 0, labelled=manifest.labelled)
    found = {name: np.empty(shape, dtype) for name, (dtype, shape) in wanted.items()}
    for name, column in found.items():
        read_rows(file, places[name][0], rows.start, column)
    lists = _lists(file, places, rows.start, found["list_ends"]) if "list_ends" in found else None
    return Columns(found["ids"], found["dense"], found.get("label"), lists, found.get("keys"))


def _lists(file: FileIO, places: Extents, first: int, ends: np.ndarray) -> Lists:
    """The lists of the rows from ``first`` on, which have these ``ends`` in the shard, int64 (rows, lists)."""
    before = np.zeros((min(first, 1), ends.shape[1]), np.int64)
    read_rows(file, places["list_ends"][0], first - len(before), before)
    start, stop = int(before[-1, -1]) if first else 0, int(ends[-1, -1])
    check_span(first, start, stop, places)
    found = {"list_ids": np.empty(stop - start, np.int32), "list_weights": np.empty(stop - start, np.float32)}
    found = {name: column for name, column in found.items() if name in places}
    for name, column in found.items():
        read_rows(file, places[name][0], start, column)
    try:
        return Lists(found["list_ids"], ends - start, found.get("list_weights"))
    except DataError as error:
        raise ListError(f"its rows from {first} on: {error}") from None
