"""Files that appear whole or not at all: written beside their place, flushed to disk, renamed."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

Json = Any  # whatever json takes and gives


@contextlib.contextmanager
def whole(path: Path) -> Iterator[Path]:
    """Give a path to write to; the file takes its name only when the block ends well."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.tmp")
    yield beside
    with beside.open("rb+") as file:
        os.fsync(file.fileno())
    beside.replace(path)


def save_array(path: Path, array: np.ndarray) -> None:
    """Write one array as a whole ``.npy`` file."""
    with whole(path) as beside, beside.open("wb") as out:
        np.save(out, array, allow_pickle=False)


def save_json(path: Path, value: Json) -> None:
    """Write a whole JSON file."""
    with whole(path) as beside:
        beside.write_text(json.dumps(value), encoding="utf-8")


def load_json(path: Path) -> Json:
    """Read what ``save_json`` wrote."""
    return json.loads(path.read_text(encoding="utf-8"))


def file_checksum(path: Path, without: Sequence[Sequence[int]] = ()) -> str:
    """SHA-256 of a whole file, or of what lies around the (offset, bytes) extents ``without``, which are in order."""
    if not without:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    digest = hashlib.sha256()
    with path.open("rb") as file:
        for offset, size in without:
            digest.update(file.read(offset - file.tell()))
            file.seek(offset + size)
        digest.update(file.read())
    return digest.hexdigest()
