"""The beginning of a rank's memory file: whether the memory is whole, whose it is, and where its arrays lie."""

from __future__ import annotations

import json
import mmap
import os
import struct
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ssmpi.runtime.mpi.shared_memory import KEY

MAGIC, LAYOUT = b"ssmpimem", 6  # raise LAYOUT with every change of what lies in a file or in a note
HEADER = 4 * mmap.ALLOCATIONGRANULARITY
FIXED = struct.Struct(f"={KEY}s8sIII")  # key, magic, what is missing, length and checksum of the table
MISSING = struct.Struct("=I")  # a part of it, at this offset:
MISSING_AT = KEY + len(MAGIC)
COMPLETE, FILLING, NOTES = range(3)  # nothing; it is not filled yet; its notes are old, because there was no room


class LostMemoryError(Exception):
    """Why the memory of an earlier process cannot be used."""


def write(head: mmap.mmap, key: bytes, table: Mapping[str, Any]) -> None:
    """Write the whole header of memory that is not filled yet: ``table`` says whose it is, and what lies in it."""
    text = json.dumps({"layout": LAYOUT, **table}).encode()
    assert len(text) <= HEADER - FIXED.size, "too many arrays for the header"
    head[FIXED.size : FIXED.size + len(text)] = text
    FIXED.pack_into(head, 0, key, MAGIC, FILLING, len(text), zlib.crc32(text))


def mark(head: mmap.mmap, missing: int) -> None:
    """Say what of the memory is missing."""
    MISSING.pack_into(head, MISSING_AT, missing)


def read(file: int, path: Path) -> tuple[mmap.mmap, dict[str, Any], bytes]:
    """The mapped header, its contents, and the key of this memory."""
    size = os.fstat(file).st_size
    if size < HEADER:
        raise LostMemoryError(f"{path}: it is cut off")
    head = mmap.mmap(file, HEADER)
    key, magic, missing, length, checksum = FIXED.unpack_from(head)
    if magic != MAGIC:
        raise LostMemoryError(f"{path}: it is no memory of ssmpi")
    if missing == FILLING:
        raise LostMemoryError(f"{path}: it was not filled yet")
    if missing:
        raise LostMemoryError(f"{path}: there was no room for its notes ({path.parent.parent} was full)")
    text = head[FIXED.size : FIXED.size + length]
    if zlib.crc32(text) != checksum:
        raise LostMemoryError(f"{path}: its header is damaged")
    table = json.loads(text)
    if table["layout"] != LAYOUT:
        raise LostMemoryError(f"{path}: another version of ssmpi made it")
    if table["size"] != size:
        raise LostMemoryError(f"{path}: it has {size:,} bytes, not {table['size']:,}")
    return head, table, key
