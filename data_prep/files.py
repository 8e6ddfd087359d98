"""Atomic files: written under a temporary name, flushed to disk, renamed."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from ssmpi.runtime.documents import parse_json
from ssmpi.runtime.files import atomic_file

Json = Any  # any JSON value


@contextlib.contextmanager
def whole(path: Path) -> Iterator[Path]:
    """Yield a temporary path to write to, and create its folder; the file is renamed to ``path`` if the block
    succeeds.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file.whole(path) as beside:
        yield beside


def publish(beside: Path, path: Path) -> None:
    """Flush a finished file to disk and rename it: under its final name it is complete, even after a crash."""
    with atomic_file.naming(path), beside.open("rb+") as file:
        os.fsync(file.fileno())
    beside.replace(path)


class Publisher:
    """Flushes and renames finished files in the background, one at a time, while the next one is written."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1)
        self._under_way: Future[None] | None = None

    def __enter__(self) -> Publisher:
        return self

    def __exit__(self, *unused: object) -> None:
        self._thread.shutdown()

    def publish(self, beside: Path, path: Path) -> None:
        """Start to publish a file once the previous one is done."""
        self.wait()
        self._under_way = self._thread.submit(publish, beside, path)

    def wait(self) -> None:
        """Wait for the current file; raises its error, if any."""
        if self._under_way:
            self._under_way.result()


def save_array(path: Path, array: np.ndarray) -> None:
    """Write an array as a ``.npy`` file, atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic_file.write_array(path, array)


def save_json(path: Path, value: Json) -> None:
    """Write a JSON file, atomically."""
    with whole(path) as beside:
        beside.write_text(json.dumps(value), encoding="utf-8")


def load_json(path: Path) -> Json:
    """Read a JSON file."""
    return parse_json(path.read_text(encoding="utf-8"))


def file_checksum(path: Path) -> str:
    """SHA-256 of a whole file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
