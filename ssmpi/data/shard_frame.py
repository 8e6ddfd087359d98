"""The frame of a shard: all bytes of its file around the columns. The HDF5 library interprets them, so they are
verified before it opens the file.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import h5py

Frame = dict[str, Any]  # "columns": (offset, bytes) of each in the file; "frame": checksum of the bytes around them


def frame_of(path: Path) -> Frame:
    """The record of a sound shard file that ``open_shard`` compares it with, for the manifest."""
    with h5py.File(path, "r", locking=False) as shard:
        columns = sorted([c.id.get_offset(), c.id.get_storage_size()] for c in shard.values() if c.size)
    return {"columns": columns, "frame": frame_checksum(path, columns)}


def frame_checksum(path: Path, columns: Sequence[Sequence[int]]) -> str:
    """SHA-256 of what lies around the columns, (offset, bytes) extents in file order: all that HDF5 goes by."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        for offset, size in columns:
            if offset < file.tell():
                raise ValueError(f"a column at {offset}, but the one before ends at {file.tell()}")
            digest.update(file.read(offset - file.tell()))
            file.seek(offset + size)
        digest.update(file.read())
    return digest.hexdigest()
