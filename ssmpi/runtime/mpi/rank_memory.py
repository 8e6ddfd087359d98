"""The memory that holds a rank's state. It ends with the process, or outlives it, so that the next process of the rank
can resume from it.

Memory that outlives its process is a file in a memory file system: a header, and arrays that this rank and others on
its host map; and beside it a small file of notes. Nothing needs to run when a process dies. The next process uses the
file only if no process maps it any more and its header marks it complete. An interrupted update does not invalidate it:
updates are lock-free anyway.

Rows that exceed memory lie in a second such file, on disk (``embedding.storage``), which is valid only together with
the first one: after a crash of the host, which may leave it half written, that one is gone. It has the hot rows.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import mmap
import os
import secrets
import struct
import threading
import time
import weakref
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypedDict, Unpack

import numpy as np
from numpy.typing import DTypeLike

from ssmpi.runtime.files.log import log
from ssmpi.runtime.host import memory_folder
from ssmpi.runtime.host.memory_folder import MAGIC, NOTES, hold
from ssmpi.runtime.mpi.huge_pages import collapse
from ssmpi.runtime.mpi.overlay import Overlay, map_over, overlays, size_of, within
from ssmpi.runtime.mpi.shared_memory import (
    KEY,
    Memory,
    NoRoomError,
    PrivateMemory,
    SharedMemory,
    address,
    keep,
    mapped,
    promise,
    punch,
    reserve,
)

HOT = "hot {}"  # the name of the bytes of an array that do not lie on disk with the others
RETRY_SECONDS = 1.0  # until notes that found no room are written again
LOCK_SECONDS = 5.0  # for the processes of the previous start to exit
LAYOUT = 10  # raise it with every change of what lies in a file, or of ``RankNotes``
HEADER = 4 * mmap.ALLOCATIONGRANULARITY
FIXED = struct.Struct(f"={KEY}s8sIII")  # key, magic, what is missing, length and checksum of the table
MISSING = struct.Struct("=I")  # a part of it, at this offset:
MISSING_AT = KEY + len(MAGIC)
COMPLETE, NOT_FILLED, NOTES_OLD = range(3)  # what is missing: nothing; the arrays' values; room for the newest notes


class RankNotes(TypedDict, total=False):
    """The small values that a rank notes beside its arrays, all in one file."""

    run: str  # every rank, when its memory is made: the run folder
    hot: Sequence[Sequence[int]]  # which bytes of an array on disk lie in memory, from where to where
    row_saves: Mapping[str, Any]  # an embedding PS's saver: when it last saved, and how long that took
    deal: Sequence[Any]  # a trainer's count of trained rows: what was dealt last
    pieces: int  # the same: for how many pieces it has room
    forgotten: str | None  # a trainer: the recovery whose outcome includes what it lost in flight
    begun: int  # the first trainer's checkpoints: the number of the newest one, which row saves refer to
    saved: Sequence[float]  # their timer: after how many examples the last one was, and when, in seconds since boot
    run_so_far: Mapping[str, Any]  # the first trainer: what no other trainer has
    ledger: Mapping[str, Any]  # the same: which memory is valid, and what was lost
    outcome: Mapping[str, Any]  # with it: what this recovery has come to; empty if the start is none


class ArrayMemory(Protocol):
    """Memory for arrays."""

    def part(self, name: str, *, shared: bool, folder: str = "", hot: Sequence[slice] = ()) -> Memory:
        """Memory for one array; other processes of the host can map it if it is ``shared``. It is a file in a
        ``folder`` on disk if one is named, but for its ``hot`` bytes, whole pages; DataError if that will not do.
        """

    def array(self, name: str, shape: tuple[int, ...], dtype: DTypeLike) -> np.ndarray:
        """An array that only this rank uses: zeros, or as an earlier process left it."""

    def ready(self) -> None:
        """All arrays are there and filled."""


class RankMemory(ArrayMemory, Protocol):
    """The memory that holds a rank's state."""

    @property
    def kept(self) -> bool:
        """Whether arrays and notes are those of an earlier process, and must not be initialized."""

    @property
    def noted(self) -> RankNotes:
        """What this process, or with ``kept`` an earlier one, has noted."""

    def note(self, **changes: Unpack[RankNotes]) -> None:
        """Note JSON values, atomically: a kill leaves either the old or the new ones."""

    def holds(self, name: str) -> bool:
        """Whether an array of this name exists and is filled: by an earlier process, or by this one before its role
        started.
        """

    def remove(self) -> None:
        """The run is over: no later process will need it."""


class ProcessMemory:
    """Memory that ends with its process."""

    kept, noted = False, RankNotes()

    def part(self, name: str, *, shared: bool, folder: str = "", hot: Sequence[slice] = ()) -> Memory:
        """As ``RankMemory``."""
        if folder:
            memory_folder.check_disk(Path(folder))
            return SharedMemory(Path(folder), hot)
        return SharedMemory() if shared and hasattr(os, "memfd_create") else PrivateMemory()

    def array(self, name: str, shape: tuple[int, ...], dtype: DTypeLike) -> np.ndarray:
        """As ``RankMemory``."""
        return np.zeros(shape, dtype)

    def ready(self) -> None:
        """Nothing to mark."""

    def note(self, **changes: Unpack[RankNotes]) -> None:
        """Nothing to store."""

    def holds(self, name: str) -> bool:
        """Nothing."""
        return False

    def remove(self) -> None:
        """Nothing is left anyway."""


class LostMemoryError(Exception):
    """Why the memory of an earlier process cannot be used."""


class Origin(NamedTuple):
    """The owner of the memory: rank and run, and the start of the job that created it."""

    run: str
    rank: str
    start: int


class MemoryFile:
    """New memory of a rank at ``path``, replacing any that is there. If the file system has no room for an array it
    warns once, and from then on the memory ends with its process; ``on_disk`` it raises NoRoomError. If it has none for
    its notes, the memory is incomplete until there is room again: a thread tries to write them until then.
    """

    _retrying: bool

    def __init__(self, path: Path, origin: Origin, *, on_disk: bool = False) -> None:
        self.path, self.origin, self.kept, self.on_disk = path, origin, False, on_disk
        self._table: dict[str, tuple[int, int]] = {}  # offset and bytes by name
        self._disk: dict[str, MemoryFile] = {}  # the arrays that are there
        self._begin_notes({}, filled=False)
        memory_folder.make(path.parent)
        remove(path)
        self.file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        weakref.finalize(self, os.close, self.file)  # mappings keep it open
        hold(self.file, fcntl.F_RDLCK)
        self._size = 0
        self._key = secrets.token_bytes(KEY)
        if self._grow(HEADER, None):
            self._head = mmap.mmap(self.file, HEADER)
            write_header(self._head, self._key, {})

    @classmethod
    def found(cls, path: Path, run: str, rank: str, *, on_disk: bool = False) -> MemoryFile:
        """Open the memory that an earlier process of the rank left at ``path``, unchanged. LostMemoryError says why it
        cannot be used.
        """
        own = cls.__new__(cls)
        try:
            memory_folder.check(path.parent)
            own.file = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError as error:
            raise LostMemoryError(f"{path}: {error.strerror or error}") from None
        weakref.finalize(own, os.close, own.file)
        _lock(own.file, path)
        own._size = os.fstat(own.file).st_size
        own._head, table, own._key = read_header(own.file, path)
        own.origin = Origin(table["run"], table["rank"], table["start"])
        own._table = {name: (offset, there) for name, (offset, there) in table["arrays"].items()}
        if own.origin[:2] != (run, rank):
            raise LostMemoryError(f"{path}: it belongs to {own.origin.rank} of run {own.origin.run}")
        own._begin_notes(read_notes(path), filled=True)
        own.path, own.kept, own.on_disk = path, True, on_disk
        own._disk = {name: cls.found(Path(there), run, rank, on_disk=True) for name, there in table["disk"].items()}
        if any(each.origin != own.origin for each in own._disk.values()):
            raise LostMemoryError(f"{path}: the rows on disk are those of another start")
        return own

    def part(self, name: str, *, shared: bool, folder: str = "", hot: Sequence[slice] = ()) -> Memory:
        """As ``RankMemory``; memory that was kept has the hot bytes that it had."""
        if folder and not self.holds(name):
            memory_folder.check_disk(Path(folder))
            there = Path(folder, self.path.parent.name, self.path.name)
            self._disk[name] = rows = MemoryFile(there, self.origin, on_disk=True)
            if run := self.noted.get("run"):
                rows.note(run=run)  # for who finds them
            self.note(hot=[(some.start, some.stop) for some in hot])
        if name not in self._disk:
            return _Part(self, name, shared=shared)
        return _Part(
            self._disk[name], name, shared=shared, hot=[slice(*each) for each in self.noted["hot"]], above=self
        )

    def array(self, name: str, shape: tuple[int, ...], dtype: DTypeLike) -> np.ndarray:
        """As ``RankMemory``."""
        placed = self.place(name, int(np.prod(shape)) * np.dtype(dtype).itemsize)
        return placed[0].view(dtype).reshape(shape) if placed else np.zeros(shape, dtype)

    def ready(self) -> None:
        """As ``RankMemory``: from now on the next process may use it."""
        if self._failed or self.kept:
            return
        for each in self._disk.values():
            each.ready()
        self.note()  # so that there is a file of notes: without it the memory is lost
        arrays = {"arrays": self._table, "disk": {name: str(each.path) for name, each in self._disk.items()}}
        with self._noting:
            write_header(self._head, self._key, {"size": self._size, **self.origin._asdict(), **arrays})
            self._filled = True
            self._mark(NOTES_OLD if self._retrying else COMPLETE)

    @property
    def noted(self) -> RankNotes:
        """As ``RankMemory``."""
        with self._noting:
            notes: RankNotes = json.loads(self._notes_text())
            return notes

    def note(self, **changes: Unpack[RankNotes]) -> None:
        """As ``RankMemory``; notes that find no room wait for it on a thread."""
        texts = {name: json.dumps(value) for name, value in changes.items()}
        with self._noting:
            self._notes |= texts
            if not (self._failed or self._retrying) and (why := self._write_notes()):
                self._retrying = True
                threading.Thread(target=self._retry, args=(why,), name="notes", daemon=True).start()

    def holds(self, name: str) -> bool:
        """As ``RankMemory``."""
        return self.kept or ((name in self._table or name in self._disk) and not self._failed)

    def remove(self) -> None:
        """As ``RankMemory``; the last rank of a host removes the folder."""
        with self._noting:
            self._failed = "the run is over"
            remove(self.path)
        for each in self._disk.values():
            each.remove()
        with contextlib.suppress(OSError):  # not empty yet, or the supervisor removed it
            self.path.parent.rmdir()

    def place(
        self, name: str, size: int, first: Sequence[slice] | None = None, over: Sequence[Overlay] = ()
    ) -> tuple[np.ndarray, bytes] | None:
        """An array of ``size`` bytes, uint8, and its address; None if there is no room, LostMemoryError if existing
        memory has no such array. If it comes in steps, ``first`` are the bytes that are there. Parts of it lie in other
        files, which are mapped ``over`` this one.
        """
        if self.kept or name in self._table:
            offset, there = self._table.get(name, (0, -1))
            if there != size:
                raise LostMemoryError(f"{self.path}: '{name}' has {there:,} bytes, not {size:,}")
        else:
            offset = self._size
            if not self._grow(size, first):
                return None
            self._table[name] = offset, size
        if not size:
            return np.empty(0, np.uint8), b""
        memory = mapped(self.file, size, offset, on_disk=self.on_disk)
        map_over(memory, over)
        if not self.on_disk:
            collapse(memory, [slice(0, size)] if first is None else first)
        return memory, address(self.file, offset, self._key, on_disk=self.on_disk, over=over)

    def overlays(self, name: str, hot: Sequence[slice], first: Sequence[slice] | None) -> list[Overlay]:
        """Where the ``hot`` bytes of an array lie that another file has; nowhere if there is no room. If it comes in
        steps, ``first`` are its bytes that are there.
        """
        there = None if first is None else [part for some in first for part in within(hot, some)]
        if not hot or self.place(name, size_of(hot), there) is None:
            return []
        return overlays(hot, self.file, self._table[name][0])

    def extend(self, name: str, more: slice) -> str:
        """Reserve bytes of an array that comes in steps; why there is no room for them, empty if there is."""
        offset, _ = self._table[name]
        return keep(self.file, self.path.parent, offset + more.start, more.stop - more.start, on_disk=self.on_disk)

    def release(self, name: str, less: slice) -> None:
        """Free bytes of an array that nobody uses any more."""
        offset, _ = self._table[name]
        punch(self.file, slice(offset + less.start, offset + less.stop))

    def _grow(self, size: int, first: Sequence[slice] | None) -> bool:
        """Reserve ``size`` more bytes, or promise them and reserve the ``first`` ones; False if there is no room."""
        start, folder = self._size, self.path.parent
        whole = -(-size // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY
        if whole and not self._failed:
            if first is None:
                why = reserve(self.file, folder, start, whole, on_disk=self.on_disk)
            else:
                why = promise(self.file, folder, slice(start, start + whole), first, on_disk=self.on_disk)
            if why:
                self._give_up(why)
            self._size += whole
        return not self._failed

    def _begin_notes(self, notes: dict[str, str], *, filled: bool) -> None:
        """``notes`` are there, JSON by name; ``filled`` if the memory is."""
        self._noting, self._notes = threading.Lock(), notes
        self._failed, self._retrying, self._filled = "", False, filled

    def _notes_text(self) -> str:
        return "{" + ",\n".join(f'"{name}": {text}' for name, text in self._notes.items()) + "}\n"

    def _write_notes(self) -> str:
        """Write the notes; why that failed, and then the memory is marked as incomplete until it succeeds."""
        try:
            _write(_notes_of(self.path), self._notes_text())
        except OSError as error:
            self._mark(NOTES_OLD)
            return str(error)
        return ""

    def _retry(self, why: str) -> None:
        """Write the notes when there is room again; say when protection ended and when it began again."""
        began, who, memory = time.monotonic(), self.origin.rank, self.path.parent.parent
        log.warning(
            f"{memory}: notes cannot be written ({why}): training continues, but if a rank is killed meanwhile, the"
            f" memory of {who} is lost. Make room there; it is tried again every {RETRY_SECONDS:g} s"
        )
        while why:
            time.sleep(RETRY_SECONDS)
            with self._noting:
                if self._failed:  # the run is over, or an array found no room
                    self._retrying = False
                    return
                if not (why := self._write_notes()):
                    self._mark(COMPLETE)
                    self._retrying = False
        seconds = time.monotonic() - began
        log.warning(f"{memory}: the notes are written after {seconds:.1f} s: the memory of {who} outlives a kill again")

    def _mark(self, missing: int) -> None:
        """Mark the memory as complete or not, unless it is not filled yet: the next process looks there."""
        if self._filled:
            mark_missing(self._head, missing)

    def _give_up(self, why: str) -> None:
        with self._noting:
            self._failed = why
            remove(self.path)
        if self.on_disk:
            raise NoRoomError(self.path.parent.parent, why)
        log.warning(
            f"no room for the memory of {self.origin.rank} in {self.path.parent.parent} ({why}): training continues,"
            " but if a rank is killed it goes back to the newest checkpoint. Set recovery.memory_folder to a larger"
            " memory file system, or recovery.mode = 'off'"
        )


class _Part:
    """Memory for one array of a ``MemoryFile``, the ``hot`` bytes of which lie in the one ``above``."""

    def __init__(
        self, memory: MemoryFile, name: str, *, shared: bool, hot: Sequence[slice] = (), above: MemoryFile | None = None
    ) -> None:
        self._memory, self._name, self._shared, self.hot, self._above = memory, name, shared, hot, above
        self.address, self.file, self.kept = b"", -1, memory.holds(name)
        self._own: Memory | None = None  # where there was no room
        self._growing: np.ndarray | None = None

    def allocate(self, size: int, first: Sequence[slice] | None = None) -> np.ndarray:
        """As ``Memory``."""
        over = self._above.overlays(HOT.format(self._name), self.hot, first) if self._above else []
        self.hot = self.hot if over else ()
        placed = self._memory.place(self._name, size, first, over)
        if placed is None:
            self._own = own = ProcessMemory().part(self._name, shared=self._shared)
            array = own.allocate(size, first)
            self.address, self.file = own.address, own.file
            return array
        if self._shared:
            self.address, self.file = placed[1], self._memory.file
        if first is not None and not self._memory.on_disk:
            self._growing = placed[0]
        return placed[0]

    def extend(self, more: slice) -> str:
        """As ``Memory``."""
        if self._own:
            return self._own.extend(more)
        hot = ((self._above, part) for part in within(self.hot, more)) if self._above else ()
        why = next(filter(None, (above.extend(HOT.format(self._name), part) for above, part in hot)), "")
        why = why or self._memory.extend(self._name, more)
        if self._growing is not None and not why:
            collapse(self._growing, [more])
        return why

    def release(self, less: slice) -> None:
        """As ``Memory``."""
        if self._own:
            self._own.release(less)
        else:
            self._memory.release(self._name, less)


def remove(path: Path) -> None:
    """Remove a rank's memory with its notes; processes that map it keep it until they end."""
    with contextlib.suppress(FileNotFoundError):  # another rank has just removed the folder, which was empty
        for each in (path, *path.parent.glob(f"{path.name}.*"), *path.parent.glob(f".{path.name}.*")):
            each.unlink(missing_ok=True)


def _write(path: Path, text: str) -> None:
    """Replace a small file at once; what lies where the new one is written, a link too, is removed."""
    beside = path.with_name(f".{path.name}")
    beside.unlink(missing_ok=True)
    file = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(file, "w", encoding="utf-8") as stream:
        stream.write(text)
    beside.replace(path)


def _notes_of(path: Path) -> Path:
    return path.with_name(f"{path.name}{NOTES}")


def read_notes(path: Path) -> dict[str, str]:
    """The notes beside the memory at ``path``, JSON by name; LostMemoryError if they are gone or damaged."""
    notes = _notes_of(path)
    if notes.is_symlink() or not notes.is_file():
        raise LostMemoryError(f"{notes}: it was removed")
    try:
        return {name: json.dumps(value) for name, value in json.loads(notes.read_text(encoding="utf-8")).items()}
    except (OSError, ValueError, AttributeError) as error:
        raise LostMemoryError(f"{notes}: damaged: {error}") from None


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


def write_header(head: mmap.mmap, key: bytes, table: Mapping[str, Any]) -> None:
    """Write the whole header of memory that is not filled yet: ``table`` says whose it is, and what lies in it."""
    text = json.dumps({"layout": LAYOUT, **table}).encode()
    assert len(text) <= HEADER - FIXED.size, "too many arrays for the header"
    head[FIXED.size : FIXED.size + len(text)] = text
    FIXED.pack_into(head, 0, key, MAGIC, NOT_FILLED, len(text), zlib.crc32(text))


def mark_missing(head: mmap.mmap, missing: int) -> None:
    """Say what of the memory is missing."""
    MISSING.pack_into(head, MISSING_AT, missing)


def read_header(file: int, path: Path) -> tuple[mmap.mmap, dict[str, Any], bytes]:
    """The mapped header, its contents, and the key of this memory."""
    size = os.fstat(file).st_size
    if size < HEADER:
        raise LostMemoryError(f"{path}: it is cut off")
    head = mmap.mmap(file, HEADER)
    key, magic, missing, length, checksum = FIXED.unpack_from(head)
    if magic != MAGIC:
        raise LostMemoryError(f"{path}: it is no memory of ssmpi")
    if missing == NOT_FILLED:
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
