"""Verifies the contents of a shard against the checksum in its data set's manifest, in the background of training."""

from __future__ import annotations

import hashlib
from pathlib import Path

from ssmpi.core.errors import DamageError
from ssmpi.data.schema import MAKE_AGAIN, Manifest, ShardEntry, open_shard

COLUMNS = ("ids", "dense", "label")
SLICE = 1 << 24  # bytes read and hashed at a time, both without the interpreter lock


def check(folder: Path, entry: ShardEntry, manifest: Manifest) -> None:
    """Read a whole shard and raise DamageError unless its columns have the checksum of the manifest."""
    path = folder / entry.file
    with open_shard(folder, entry, manifest) as shard:
        columns = [shard[name].id for name in COLUMNS[: 3 if manifest.labelled else 2]]
        extents = [(column.get_offset(), column.get_storage_size()) for column in columns]
    if any(size and offset is None for offset, size in extents):
        raise DamageError(path, "its columns are not contiguous, as those of a shard are", MAKE_AGAIN)
    digest, buffer = hashlib.sha256(), memoryview(bytearray(SLICE))
    try:
        with path.open("rb", buffering=0) as file:
            for offset, size in extents:
                if size:
                    file.seek(offset)
                while size and (count := file.readinto(buffer[: min(size, SLICE)])):
                    digest.update(buffer[:count])
                    size -= count
    except OSError as error:
        raise DamageError(path, f"cannot be read ({error})", f"look at its disk, or {MAKE_AGAIN}") from error
    if digest.hexdigest()[:32] != entry.checksum:
        raise DamageError(path, "damaged: the checksum of its columns is not the one in the manifest", MAKE_AGAIN)
