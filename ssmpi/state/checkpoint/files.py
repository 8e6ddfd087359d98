"""HDF5 files with a checksum over all of their bytes: written in one pass from memory, without the GIL,
flushed to disk, and verified before the HDF5 library opens them, because a damaged header can crash or hang it. HDF5
itself never writes to the disk: it would hold the GIL, and a hung disk would stop all threads.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import h5py
import numpy as np

from ssmpi.runtime.errors import ContentError, DataError
from ssmpi.runtime.files import hdf5
from ssmpi.runtime.files.atomic_file import WRITE_BYTES
from ssmpi.state.checkpoint import disk

SLICE = WRITE_BYTES  # written, or read, and hashed at a time

Dataset = tuple[str, np.ndarray, Mapping[str, Any]]  # name, values, attributes


@dataclass(frozen=True)
class Entry:
    """A file as a manifest records it. ``checksum`` is what ``sha256sum`` prints."""

    file: str
    bytes: int
    checksum: str

    def __post_init__(self) -> None:
        if (self.file, type(self.bytes), type(self.checksum)) != (Path(self.file).name, int, str):
            raise ContentError(f"it names a file {self.file!r} of {self.bytes!r} bytes with SHA-256 {self.checksum!r}")


def write(path: Path, datasets: Iterable[Dataset]) -> Entry:
    """Write arrays under their names, each contiguous and uncompressed; OSError names the file if the write fails. The
    values must not change meanwhile. First the layout is created, then the values are written and hashed together, so
    they are read only once.
    """
    digest = hashlib.sha256()
    with _in_memory() as layout:
        pieces = _pieces(layout, datasets)
        size = os.fstat(layout.fileno()).st_size
        with disk.needing(path, size), disk.created(path) as descriptor:
            for offset, content in pieces:
                disk.write_at(descriptor, content, offset)
                digest.update(content)
            disk.sync(descriptor)
    return Entry(path.name, size, digest.hexdigest())


def verify(folder: Path, entry: Entry) -> None:
    """Raise DataError unless the file is on disk as it was written, to the last bit."""
    path = folder / entry.file
    try:
        size = path.stat().st_size
        if size != entry.bytes:
            raise DataError(f"{path}: {size:,} bytes, {entry.bytes:,} were written: cut off or replaced")
        digest = hashlib.sha256()
        for content in _contents(path):
            digest.update(content)
    except FileNotFoundError:
        raise DataError(f"{path}: missing") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error})") from error
    if digest.hexdigest() != entry.checksum:
        raise DataError(f"{path}: damaged: its SHA-256 is not the one that was written")


def read(path: Path) -> dict[str, np.ndarray]:
    """All arrays of a small file by name."""
    found: dict[str, np.ndarray] = {}

    def take(name: str, item: object) -> None:
        if isinstance(item, h5py.Dataset):
            found[name] = item[()]

    with hdf5.opened(path) as saved:
        saved.visititems(take)
    return found


def _in_memory() -> IO[bytes]:
    """An empty file for HDF5 to write to, in memory if the system supports that."""
    if hasattr(os, "memfd_create"):
        return os.fdopen(os.memfd_create("layout"), "r+b", 0)
    return tempfile.TemporaryFile(buffering=0)


def _pieces(layout: IO[bytes], datasets: Iterable[Dataset]) -> Iterator[tuple[int, memoryview]]:
    """Create the layout of the arrays in the file ``layout``, without values; then yield all bytes of the complete
    file, piece by piece, with the offset of each.
    """
    extents: list[tuple[int, np.ndarray]] = []
    with h5py.File(layout, "w", locking=False) as out:
        for name, values, attributes in datasets:
            values = np.ascontiguousarray(values)
            made = _allocate(out, name, values)
            made.attrs.update(attributes)
            if values.size:
                extents.append((made.id.get_offset(), values))
    extents.sort(key=lambda extent: extent[0])
    return _cut(layout.fileno(), extents)


def _cut(layout: int, extents: list[tuple[int, np.ndarray]]) -> Iterator[tuple[int, memoryview]]:
    end, size = 0, os.fstat(layout).st_size
    for offset, values in [*extents, (size, np.empty(0, np.uint8))]:
        if between := os.pread(layout, offset - end, end):  # what HDF5 wrote there
            yield end, memoryview(between)
        content = values.reshape(-1).view(np.uint8).data
        for start in range(0, len(content), SLICE):
            yield offset + start, content[start : start + SLICE]
        end = offset + len(content)


def _allocate(out: h5py.File, name: str, values: np.ndarray) -> h5py.Dataset:
    """Create a data set with its space in the file, without values."""
    plan = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    plan.set_layout(h5py.h5d.CONTIGUOUS)
    plan.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    plan.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    group, _, last = name.rpartition("/")
    parent = out.require_group(group) if group else out
    kind, space = h5py.h5t.py_create(values.dtype, logical=True), h5py.h5s.create_simple(values.shape)
    return h5py.Dataset(h5py.h5d.create(parent.id, last.encode(), kind, space, plan))


def _contents(path: Path) -> Iterator[memoryview]:
    """The bytes of a file, slice by slice."""
    buffer = bytearray(SLICE)
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(buffer):
            yield memoryview(buffer)[:count]
