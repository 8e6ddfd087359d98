"""Memory of one rank that outlives its process, so that the next process of the rank can resume from it.

It is a file in a memory file system: a header, and arrays that this rank and others on its host map. Nothing needs to
run when a process dies. The next process uses the file only if no process maps it any more and its header marks it
complete. An interrupted update does not invalidate it: updates are lock-free anyway.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import mmap
import os
import secrets
import struct
import time
import weakref
import zlib
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike

from ssmpi.comm.rank_memory import ProcessMemory
from ssmpi.comm.reservation import reserve
from ssmpi.comm.shared_memory import KEY, Memory, address, hold, mapped
from ssmpi.core.log import log

MAGIC, LAYOUT = b"ssmpimem", 4  # raise LAYOUT with every change of what lies in a file or in a note
HEADER = 4 * mmap.ALLOCATIONGRANULARITY
FIXED = struct.Struct(f"={KEY}s8sIII")  # key, magic, whether it is still being filled, length and checksum of the table
LOCK_SECONDS = 5.0  # for the processes of the previous start to exit


class LostMemoryError(Exception):
    """Why the memory of an earlier process cannot be used."""


class Origin(NamedTuple):
    """The owner of the memory: rank and run, and the start of the job that created it."""

    run: str
    rank: str
    start: int


class MemoryFile:
    """New memory of a rank at ``path``, replacing any that is there. If the file system has no room for an array it
    warns once, and from then on the memory ends with its process.
    """

    def __init__(self, path: Path, origin: Origin) -> None:
        self.path, self.origin, self.kept = path, origin, False
        self._table: dict[str, tuple[int, int]] = {}  # offset and bytes by name
        self._notes: set[str] = set()
        self._failed = ""
        path.parent.mkdir(mode=0o700, exist_ok=True)
        remove(path)
        self.file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        weakref.finalize(self, os.close, self.file)  # mappings keep it open
        hold(self.file, fcntl.F_RDLCK)
        self._size = 0
        self._key = secrets.token_bytes(KEY)
        if self._grow(HEADER):
            self._head = mmap.mmap(self.file, HEADER)
            FIXED.pack_into(self._head, 0, self._key, MAGIC, True, 0, 0)

    @classmethod
    def found(cls, path: Path, run: str, rank: str) -> MemoryFile:
        """Open the memory that an earlier process of the rank left at ``path``, unchanged. LostMemoryError says why it
        cannot be used.
        """
        own = cls.__new__(cls)
        try:
            own.file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            raise LostMemoryError(f"{path}: {error.strerror}") from None
        weakref.finalize(own, os.close, own.file)
        _lock(own.file, path)
        own._size = os.fstat(own.file).st_size
        own._head, table, own._key = _read_header(own.file, path)
        own.origin = Origin(table["run"], table["rank"], table["start"])
        own._table = {name: (offset, there) for name, (offset, there) in table["arrays"].items()}
        own._notes = set(table["notes"])
        if own.origin[:2] != (run, rank):
            raise LostMemoryError(f"{path}: it is of {own.origin.rank} of run {own.origin.run}")
        for name in sorted(own._notes):
            if not _note(path, name).is_file():
                raise LostMemoryError(f"{_note(path, name)}: it was removed")
        own.path, own.kept, own._failed = path, True, ""
        return own

    def part(self, name: str, *, shared: bool) -> Memory:
        """As ``RankMemory``."""
        return _Part(self, name, shared=shared)

    def array(self, name: str, shape: tuple[int, ...], dtype: DTypeLike) -> np.ndarray:
        """As ``RankMemory``."""
        placed = self.place(name, int(np.prod(shape)) * np.dtype(dtype).itemsize)
        return placed[0].view(dtype).reshape(shape) if placed else np.zeros(shape, dtype)

    def ready(self) -> None:
        """As ``RankMemory``: from now on the next process may use it."""
        if self._failed or self.kept:
            return
        table = {"layout": LAYOUT, "size": self._size, **self.origin._asdict(), "arrays": self._table}
        text = json.dumps({**table, "notes": sorted(self._notes)}).encode()
        assert len(text) <= HEADER - FIXED.size, "too many arrays for the header"
        self._head[FIXED.size : FIXED.size + len(text)] = text
        FIXED.pack_into(self._head, 0, self._key, MAGIC, True, len(text), zlib.crc32(text))
        FIXED.pack_into(self._head, 0, self._key, MAGIC, False, len(text), zlib.crc32(text))

    def note(self, name: str, value: object) -> None:
        """As ``RankMemory``."""
        if self._failed:
            return
        path = _note(self.path, name)
        beside = path.with_name(f".{path.name}")
        try:
            beside.write_text(json.dumps(value), encoding="utf-8")
            beside.replace(path)
            self._notes.add(name)
        except OSError as error:
            self._give_up(str(error))

    def noted(self, name: str) -> Any:
        """As ``RankMemory``."""
        try:
            return json.loads(_note(self.path, name).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None

    def holds(self, name: str) -> bool:
        """As ``RankMemory``."""
        return self.kept or (name in self._table and not self._failed)

    def remove(self) -> None:
        """As ``RankMemory``; the last rank of a host removes the folder."""
        remove(self.path)
        with contextlib.suppress(OSError):  # not empty yet, or the supervisor removed it
            self.path.parent.rmdir()

    def place(self, name: str, size: int) -> tuple[np.ndarray, bytes] | None:
        """An array of ``size`` bytes, uint8, and its address; None if there is no room, LostMemoryError if existing
        memory has no such array.
        """
        if self.kept or name in self._table:
            offset, there = self._table.get(name, (0, -1))
            if there != size:
                raise LostMemoryError(f"{self.path}: '{name}' has {there:,} bytes, not {size:,}")
        else:
            offset = self._size
            if not self._grow(size):
                return None
            self._table[name] = offset, size
        if not size:
            return np.empty(0, np.uint8), b""
        return np.frombuffer(mapped(self.file, size, offset), np.uint8), address(self.file, offset, self._key)

    def _grow(self, size: int) -> bool:
        """Reserve ``size`` more bytes; False if there is no room."""
        whole = -(-size // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY
        if whole and not self._failed:
            if why := reserve(self.file, self.path.parent, self._size, whole):
                self._give_up(why)
            self._size += whole
        return not self._failed

    def _give_up(self, why: str) -> None:
        self._failed = why
        remove(self.path)
        log.warning(
            f"no room for the memory of {self.origin.rank} in {self.path.parent.parent} ({why}): training continues,"
            " but if a rank is killed it goes back to the newest checkpoint. Set recovery.memory_folder to a larger"
            " memory file system, or recovery.mode = 'off'"
        )


class _Part:
    """Memory for one array of a ``MemoryFile``."""

    def __init__(self, memory: MemoryFile, name: str, *, shared: bool) -> None:
        self._memory, self._name, self._shared = memory, name, shared
        self.address, self.file, self.kept = b"", -1, memory.holds(name)

    def allocate(self, size: int) -> np.ndarray:
        """uint8 (size,)."""
        placed = self._memory.place(self._name, size)
        if placed is None:
            own = ProcessMemory().part(self._name, shared=self._shared)
            array = own.allocate(size)
            self.address, self.file = own.address, own.file
            return array
        if self._shared:
            self.address, self.file = placed[1], self._memory.file
        return placed[0]


def remove(path: Path) -> None:
    """Remove a rank's memory with its notes; processes that map it keep it until they end."""
    with contextlib.suppress(FileNotFoundError):  # another rank has just removed the folder, which was empty
        for each in (path, *path.parent.glob(f"{path.name}.*"), *path.parent.glob(f".{path.name}.*")):
            each.unlink(missing_ok=True)


def _note(path: Path, name: str) -> Path:
    return path.with_name(f"{path.name}.{name}.json")


def _lock(file: int, path: Path) -> None:
    """Lock the file exclusively for a moment, then share it; LostMemoryError if another process still maps it."""
    deadline = time.monotonic() + LOCK_SECONDS
    while True:
        with contextlib.suppress(BlockingIOError):
            hold(file, fcntl.F_WRLCK)
            break
        if time.monotonic() > deadline:
            raise LostMemoryError(f"{path}: a process of an earlier start still maps it after {LOCK_SECONDS:g} s")
        time.sleep(0.01)
    hold(file, fcntl.F_RDLCK)


def _read_header(file: int, path: Path) -> tuple[mmap.mmap, dict[str, Any], bytes]:
    """The mapped header, its contents, and the key of this memory."""
    size = os.fstat(file).st_size
    if size < HEADER:
        raise LostMemoryError(f"{path}: it is cut off")
    head = mmap.mmap(file, HEADER)
    key, magic, filling, length, checksum = FIXED.unpack_from(head)
    if magic != MAGIC:
        raise LostMemoryError(f"{path}: it is no memory of ssmpi")
    if filling:
        raise LostMemoryError(f"{path}: it was not filled yet")
    text = head[FIXED.size : FIXED.size + length]
    if zlib.crc32(text) != checksum:
        raise LostMemoryError(f"{path}: its header is damaged")
    table = json.loads(text)
    if table["layout"] != LAYOUT:
        raise LostMemoryError(f"{path}: another version of ssmpi made it")
    if table["size"] != size:
        raise LostMemoryError(f"{path}: it has {size:,} bytes, not {table['size']:,}")
    return head, table, key
