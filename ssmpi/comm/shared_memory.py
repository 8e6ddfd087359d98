"""Memory that other processes of a host can map: the rows of an embedding PS and the replicas of trainers are then read
and updated in place. Or memory of this process alone.

What is shared is an anonymous file (``memfd``) reached through ``/proc``: ``/dev/shm`` sets no limit, and nothing is
left behind however the processes end. A random key in it proves that two ranks share a host: a host name does not.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import secrets
import socket
from typing import Protocol

import numpy as np

HEADER = 4096  # bytes, the first of which hold the key: the memory itself starts on a new page
KEY = 16


class Memory(Protocol):
    """Allocates one piece of memory, that of an open ``file`` where others can map it."""

    address: bytes
    file: int

    def allocate(self, size: int) -> np.ndarray:
        """uint8 (size,)."""


class PrivateMemory:
    """Memory of this process only."""

    address, file = b"", -1

    def allocate(self, size: int) -> np.ndarray:
        """uint8 (size,)."""
        return private_memory(size)


def private_memory(size: int) -> np.ndarray:
    """uint8 (size,), not initialized."""
    return np.empty(size, np.uint8)


class SharedMemory:
    """Memory that ``attach`` finds by ``address``, a JSON text."""

    address, file = b"", -1

    def allocate(self, size: int) -> np.ndarray:
        """uint8 (size,), zeros; pages are committed when first touched."""
        self.file = file = os.memfd_create("ssmpi")
        os.ftruncate(file, HEADER + size)
        memory = mmap.mmap(file, HEADER + size)
        with contextlib.suppress(OSError):  # huge pages where the system grants them
            memory.madvise(mmap.MADV_HUGEPAGE)
        key = secrets.token_bytes(KEY)
        memory[:KEY] = key
        place = {"host": socket.gethostname(), "pid": os.getpid(), "file": file, "key": key.hex()}
        self.address = json.dumps(place).encode()
        return np.frombuffer(memory, np.uint8)[HEADER:]


def memory_for(transport: str) -> Memory:
    """The kind of memory that a ``transport`` setting asks for."""
    return SharedMemory() if transport != "messages" and hasattr(os, "memfd_create") else PrivateMemory()


def open_file(address: str | bytes) -> int:
    """The file of another process's memory, opened anew; OSError says why it cannot."""
    if not address:
        raise OSError("its system has no memory to share (memfd_create)")
    place = json.loads(address)
    if place["host"] != socket.gethostname():
        raise OSError(f"it runs on host {place['host']}, this rank on {socket.gethostname()}")
    return os.open(f"/proc/{place['pid']}/fd/{place['file']}", os.O_RDWR)


def attach(address: str | bytes, size: int) -> np.ndarray:
    """Map another process's memory of this size, uint8 (size,); OSError says why it cannot."""
    file = open_file(address)
    place = json.loads(address)
    try:
        found = os.fstat(file).st_size
        if found != HEADER + size:
            raise OSError(f"process {place['pid']} of this host is not it: {found:,} bytes, not {HEADER + size:,}")
        memory = mmap.mmap(file, HEADER + size)
    finally:
        os.close(file)
    if memory[:KEY].hex() != place["key"]:
        raise OSError(f"process {place['pid']} of this host is not it: they are in separate containers")
    return np.frombuffer(memory, np.uint8)[HEADER:]
