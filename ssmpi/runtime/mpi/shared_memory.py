"""Memory that other processes of a host can map, so that the rows of an embedding PS and the replicas of trainers are
read and updated in place; or private memory.

Shared memory is an anonymous file (``memfd``) reached through ``/proc``: the size of ``/dev/shm`` is no limit, and
nothing is left behind however the processes end. A random key in it proves that two ranks share a host; a host name
would not. ``rank_memory`` provides memory that outlives its process.

Tables that exceed memory lie in a file on disk (``embedding.storage``): the kernel keeps in memory what is in use, and
their hot rows lie in memory that no disk backs (``overlay``).

Space in a memory file system is reserved before it is used: touching pages that cannot be allocated kills the process
(SIGBUS), and a job beyond its batch system's memory limit is killed as well. Memory that comes in steps is promised
first: its addresses are there, for those who map it, and each step is reserved when it is needed.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import mmap
import os
import secrets
import socket
import tempfile
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np

from ssmpi.runtime.compiled.aligned import aligned
from ssmpi.runtime.errors import DataError
from ssmpi.runtime.host.host_memory import free_memory
from ssmpi.runtime.host.memory_folder import hold
from ssmpi.runtime.mpi.huge_pages import collapse, huge_page, in_huge_pages
from ssmpi.runtime.mpi.overlay import Overlay, map_over, overlays, size_of

HEADER = 4096  # bytes, the first of which hold the key: the memory itself starts on a new page
KEY = 16
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.ENOMEM)
SEGMENT = "sm_segment."  # how names of Open MPI's files begin
BLOCK = 512  # bytes, of st_blocks
MAP_NORESERVE = 0x4000  # as Linux has it on x86-64 and arm64


class Memory(Protocol):
    """Allocates one piece of memory; ``kept`` if an earlier process has filled it, so that it must not be
    initialized. Of a piece that comes in steps only the bytes that are there may be touched.
    """

    @property
    def address(self) -> bytes:
        """For ``attach``; empty if it is private."""

    @property
    def file(self) -> int:
        """The open file that others map; -1 if it is private."""

    @property
    def kept(self) -> bool:
        """Whether it holds the state of an earlier process of this rank."""

    @property
    def hot(self) -> Sequence[slice]:
        """The bytes that do not lie on disk with the others."""

    def allocate(self, size: int, first: Sequence[slice] | None = None) -> np.ndarray:
        """uint8 (size,). If it comes in steps, ``first`` are the bytes that are there, zeros; else all are."""

    def extend(self, more: slice) -> str:
        """Let more bytes be there, zeros if they were not; why there is no room for them, empty if there is."""

    def release(self, less: slice) -> None:
        """Give back bytes that nobody uses any more: whole pages of them are not there then."""


class PrivateMemory:
    """Memory of this process only."""

    address, file, kept, hot = b"", -1, False, ()

    def allocate(self, size: int, first: Sequence[slice] | None = None) -> np.ndarray:
        """uint8 (size,), not initialized unless it comes in steps."""
        if first is None or not size:
            return aligned((size,), np.uint8)
        self._pages = in_huge_pages(mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
        return np.frombuffer(self._pages, np.uint8)

    def extend(self, more: slice) -> str:
        """As ``Memory``; pages come when they are touched, so it can only tell what is free now."""
        return lacking(more.stop - more.start, free_memory())

    def release(self, less: slice) -> None:
        """As ``Memory``."""
        start, stop = whole_pages(less)
        if start < stop:
            self._pages.madvise(mmap.MADV_DONTNEED, start, stop - start)


class SharedMemory:
    """Memory that ``attach`` finds by ``address``, a JSON text; in a file in a ``folder`` on disk if one is named, but
    for its ``hot`` bytes.
    """

    address, file, kept = b"", -1, False

    def __init__(self, folder: Path | None = None, hot: Sequence[slice] = ()) -> None:
        self._folder, self.hot = folder, hot
        self._growing: np.ndarray | None = None

    def allocate(self, size: int, first: Sequence[slice] | None = None) -> np.ndarray:
        """uint8 (size,), zeros. Where there is room for all of it, it is reserved at once, so that it can lie in huge
        pages; otherwise pages are committed when first touched. DataError if the disk has no room.
        """
        self.file = file = nameless(self._folder) if self._folder else os.memfd_create("ssmpi")
        os.ftruncate(file, HEADER + size)
        memory = mapped(file, HEADER + size, on_disk=self._folder is not None)
        weakref.finalize(memory.base, os.close, file)  # others can open it as long as this process maps it
        if self._folder:
            for some in [slice(0, size)] if first is None else first:
                if why := self.extend(some):
                    raise NoRoomError(self._folder, why)
        elif first is None and not allocate(file, 0, HEADER + size, free_memory()):
            collapse(memory, [slice(0, HEADER + size)])
        over = self._overlays(memory) if self.hot else []
        key = secrets.token_bytes(KEY)
        memory[:KEY] = np.frombuffer(key, np.uint8)
        self.address = address(file, HEADER, key, on_disk=self._folder is not None, over=over)
        if first is not None and not self._folder:
            self._growing = memory[HEADER:]
        return memory[HEADER:]

    def _overlays(self, memory: np.ndarray) -> list[Overlay]:
        """Map memory where the hot bytes are."""
        file = os.memfd_create("ssmpi")
        weakref.finalize(memory.base, os.close, file)
        os.ftruncate(file, size_of(self.hot))
        map_over(memory[HEADER:], found := overlays(self.hot, file, 0))
        return found

    def extend(self, more: slice) -> str:
        """As ``Memory``."""
        room = _free(self.file, on_disk=True) if self._folder else free_memory()
        why = allocate(self.file, HEADER + more.start, more.stop - more.start, room)
        if self._growing is not None and not why:
            collapse(self._growing, [more])
        return why

    def release(self, less: slice) -> None:
        """As ``Memory``."""
        punch(self.file, slice(HEADER + less.start, HEADER + less.stop))


def placed(memory: Memory, values: np.ndarray) -> np.ndarray:
    """A copy of ``values`` in ``memory``; if the memory was kept, its contents instead."""
    mine: np.ndarray = memory.allocate(values.nbytes).view(values.dtype)
    if not memory.kept:
        mine[:] = values
    return mine


class NoRoomError(DataError):
    """A disk has no room for rows."""

    def __init__(self, folder: Path, why: str) -> None:
        super().__init__(folder, why)  # both, so that it can be pickled
        self.folder, self.why = folder, why

    def __str__(self) -> str:
        remedy = "make room there, or name a folder on a larger disk"
        return f"embedding.storage: no room in {self.folder}: {self.why}; {remedy}"


def nameless(folder: Path) -> int:
    """Open a new file in a folder on disk that ends with the processes that have it open."""
    with contextlib.suppress(OSError):  # not every file system has such files
        return os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    file, path = tempfile.mkstemp(prefix="ssmpi-", dir=folder)
    Path(path).unlink()
    return file


def mapped(file: int, size: int, offset: int = 0, *, on_disk: bool = False) -> np.ndarray:
    """Map ``size`` bytes of an open file, uint8, so that its huge pages are used; ``offset`` is page-aligned. A fault
    in one ``on_disk`` reads a single page: rows beside a row are no more likely to be wanted than others.
    """
    huge = huge_page()
    if on_disk or not huge or size < huge:
        pages = mmap.mmap(file, size, offset=offset)
        if on_disk:
            pages.madvise(mmap.MADV_RANDOM)
        return np.frombuffer(pages, np.uint8)
    room = mmap.mmap(-1, size + huge, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE)
    around = np.frombuffer(room, np.uint8)
    first = (offset - around.ctypes.data) % huge  # where a huge page of the file is one of addresses
    memory = around[first : first + size]
    map_over(memory, [Overlay(0, size, file, offset)])
    in_huge_pages(room)
    return memory


def punch(file: int, less: slice) -> None:
    """Free the whole pages among some bytes of an open file, in which those who map it find zeros then; they stay where
    its file system cannot do that.
    """
    start, stop = whole_pages(less)
    if start < stop:
        with mmap.mmap(file, stop - start, offset=start) as pages, contextlib.suppress(OSError):
            pages.madvise(mmap.MADV_REMOVE)


def whole_pages(some: slice) -> tuple[int, int]:
    """Where the whole pages among some bytes begin and end."""
    return -(-some.start // mmap.PAGESIZE) * mmap.PAGESIZE, some.stop // mmap.PAGESIZE * mmap.PAGESIZE


def address(file: int, offset: int, key: bytes, *, on_disk: bool = False, over: Sequence[Overlay] = ()) -> bytes:
    """For ``attach``, of memory at this offset of a file that this process has open and that begins with ``key``."""
    place = {"host": socket.gethostname(), "pid": os.getpid(), "file": file, "offset": offset, "key": key.hex()}
    return json.dumps(place | {"on_disk": on_disk, "over": over}).encode()


def open_file(address: str | bytes) -> int:
    """Open the file of another process's memory again; OSError says why it cannot be opened."""
    if not address:
        raise OSError("its system has no memory to share (memfd_create)")
    place = json.loads(address)
    if place["host"] != socket.gethostname():
        raise OSError(f"it runs on host {place['host']}, this rank on {socket.gethostname()}")
    return _file_of(place["pid"], place["file"])


def _file_of(process: int, file: int) -> int:
    """Open a file again that another process has open."""
    return os.open(f"/proc/{process}/fd/{file}", os.O_RDWR)


def attach(address: str | bytes, size: int) -> np.ndarray:
    """Map another process's memory of this size, uint8 (size,); OSError says why it cannot.

    While it is mapped this process holds a shared lock on its file. Nothing is mapped if the size is 0.
    """
    if not size:
        return np.empty(0, np.uint8)
    file = open_file(address)
    place = json.loads(address)
    offset = place["offset"]
    try:
        found = os.fstat(file).st_size
        if found < offset + size:
            raise OSError(f"process {place['pid']} of this host is another one: {found:,} bytes, not {offset + size:,}")
        if os.pread(file, KEY, 0).hex() != place["key"]:
            raise OSError(f"process {place['pid']} of this host is another one: the ranks are in separate containers")
        hold(file, fcntl.F_RDLCK)
        memory = mapped(file, size, offset, on_disk=place["on_disk"])  # which keeps the lock
        _attach_over(memory, place["pid"], [Overlay(*each) for each in place["over"]])
    finally:
        os.close(file)
    return memory


def _attach_over(memory: np.ndarray, process: int, over: Sequence[Overlay]) -> None:
    """Map what another process has mapped over the same file, which lies in one file."""
    if over:
        file = _file_of(process, over[0].file)
        try:
            hold(file, fcntl.F_RDLCK)
            map_over(memory, [each._replace(file=file) for each in over])
        finally:
            os.close(file)


def reserve(file: int, folder: Path, start: int, size: int, *, on_disk: bool = False) -> str:
    """Grow an open file from ``start`` by ``size`` bytes if its file system and, unless it is ``on_disk``, the machine
    and the control group have room; otherwise return why not. Ranks with files in the same ``folder`` take turns, or
    they would count on the same free space, and what they have ``promised`` each other is not free.
    """
    with _in_turn(folder):
        return allocate(file, start, size, _free(file, on_disk=on_disk) - promised(folder))


def promise(file: int, folder: Path, more: slice, first: Sequence[slice], *, on_disk: bool = False) -> str:
    """Grow an open file by these bytes if its file system has room for them, some time, and reserve the ``first`` among
    them now; otherwise return why not.
    """
    with _in_turn(folder):
        if why := lacking(more.stop - more.start, _free(file, on_disk=True) - promised(folder)):
            return why
        os.truncate(file, more.stop)
    whys = (keep(file, folder, more.start + some.start, some.stop - some.start, on_disk=on_disk) for some in first)
    return next(filter(None, whys), "")


def keep(file: int, folder: Path, start: int, size: int, *, on_disk: bool = False) -> str:
    """Reserve some of the bytes that were promised; why there is no room for them after all, empty if there is."""
    with _in_turn(folder):
        return allocate(file, start, size, _free(file, on_disk=on_disk))


def allocate(file: int, start: int, size: int, room: float) -> str:
    """Allocate bytes of an open file, which grows if they lie beyond its end, if there is ``room`` for so many; why
    there is none, empty if there is. Those that are there already stay as they are.
    """
    if not size or size > room:
        return lacking(size, room)
    try:
        os.posix_fallocate(file, start, size)
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        return f"{size:,} bytes are needed: {error.strerror}"
    return ""


def lacking(size: int, room: float) -> str:
    """That there is no ``room`` for so many bytes; empty if there is."""
    return f"{size:,} bytes are needed, {int(room):,} are free" if size > room else ""


def promised(folder: Path) -> int:
    """Bytes of the ranks' files in a folder that are not there yet. Open MPI's segments, which it places beside them
    and fills to a small part, are no promises.
    """
    found = 0
    for path in folder.iterdir():
        if path.name.startswith(SEGMENT):
            continue
        with contextlib.suppress(FileNotFoundError):  # a rank that ends removes its own
            status = path.stat()
            found += max(0, status.st_size - BLOCK * status.st_blocks)
    return found


def _free(file: int, *, on_disk: bool) -> float:
    """Bytes that are left in the file system of an open file and, unless it is ``on_disk``, of memory."""
    system = os.fstatvfs(file)
    left = system.f_bavail * system.f_frsize
    return left if on_disk else min(left, free_memory())


@contextlib.contextmanager
def _in_turn(folder: Path) -> Iterator[None]:
    try:
        held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:  # somebody removed it: files that are mapped stay, and are not found any more
        yield
        return
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield
    finally:
        os.close(held)
