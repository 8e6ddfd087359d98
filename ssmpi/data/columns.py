"""The contents of a shard, read past HDF5, which holds the GIL while it reads: rows for a worker thread,
and all of them for a comparison with the checksum in the manifest.
"""

from __future__ import annotations

import hashlib
from io import FileIO
from pathlib import Path

import numpy as np

from ssmpi.core.errors import DamageError
from ssmpi.data.schema import MAKE_AGAIN, Manifest, ShardEntry, open_shard
from ssmpi.data.shard_columns import kinds

SLICE = 1 << 24  # bytes read and hashed at a time, both without the GIL


def extents(folder: Path, entry: ShardEntry, manifest: Manifest) -> dict[str, tuple[int, int]]:
    """Where in its file each column of a shard lies, offset and bytes by name, in the order of the checksum, once it
    has been checked to be the one in the manifest; DataError if it is not, or its columns are not contiguous.
    """
    with open_shard(folder, entry, manifest) as shard:
        columns = {name: shard[name].id for name in kinds(manifest.features, 0, 0, labelled=manifest.labelled)}
        found = {name: (column.get_offset(), column.get_storage_size()) for name, column in columns.items()}
    if any(size and offset is None for offset, size in found.values()):
        raise DamageError(folder / entry.file, "its columns are not contiguous", MAKE_AGAIN)
    return {name: (offset or 0, size) for name, (offset, size) in found.items()}


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


def check(folder: Path, entry: ShardEntry, manifest: Manifest) -> None:
    """Read a whole shard and raise DamageError unless its columns have the checksum of the manifest."""
    path, places = folder / entry.file, extents(folder, entry, manifest)
    digest, buffer = hashlib.sha256(), memoryview(bytearray(SLICE))
    try:
        with path.open("rb", buffering=0) as file:
            for offset, size in places.values():
                if size:
                    file.seek(offset)
                while size and (count := file.readinto(buffer[: min(size, SLICE)])):
                    digest.update(buffer[:count])
                    size -= count
    except OSError as error:
        raise DamageError(path, f"cannot be read ({error})", f"look at its disk, or {MAKE_AGAIN}") from error
    if digest.hexdigest()[:32] != entry.checksum:
        raise DamageError(path, "damaged: the checksum of its columns is not the one in the manifest", MAKE_AGAIN)
