"""Memory that another process maps: found by its address, and nothing else taken for it."""

import json
import mmap
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest

from ssmpi.runtime.mpi import shared_memory
from ssmpi.runtime.mpi.huge_pages import huge_page
from ssmpi.runtime.mpi.rank_memory import MemoryFile, Origin, ProcessMemory
from ssmpi.runtime.mpi.shared_memory import HEADER, PrivateMemory, SharedMemory, attach

OTHER = """
import sys
from ssmpi.runtime.mpi.rank_memory import ProcessMemory
from ssmpi.runtime.mpi.shared_memory import attach
room = attach(sys.argv[1], 10_000)
room[7] += 1
print(room.sum())
"""


@pytest.fixture
def memory_folder():
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        yield Path(folder)


def address(memory, **changes):
    return json.dumps(json.loads(memory.address) | changes)


def test_another_process_reads_and_writes_it():
    memory = SharedMemory()
    room = memory.allocate(10_000)
    assert not room.any()
    room[7], room[9_999] = 40, 2
    other = subprocess.run(
        [sys.executable, "-c", OTHER, memory.address.decode()], capture_output=True, text=True, check=True
    )
    assert other.stdout.strip() == "43"
    assert room[7] == 41


def test_memory_outlives_nobody():
    """It goes with its processes: there is no file to be left behind."""
    memory = SharedMemory()
    room = memory.allocate(10)
    place = json.loads(memory.address)
    assert str(Path(f"/proc/{place['pid']}/fd/{place['file']}").readlink()).endswith("(deleted)")
    assert not room.any()


def test_its_file_is_open_as_long_as_it_is_mapped():
    memory = SharedMemory()
    room = memory.allocate(10)
    view = room[3:]
    del room
    assert os.fstat(memory.file).st_size == HEADER + 10
    del view
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(memory.file)


def test_what_is_not_it_is_refused():
    memory, other = SharedMemory(), SharedMemory()
    room, room_of_other = memory.allocate(100), other.allocate(100)
    assert len(room) == len(room_of_other)
    with pytest.raises(OSError, match="it runs on host far, this rank on"):
        attach(address(memory, host="far"), 100)
    with pytest.raises(OSError, match="another one: 4,196 bytes, not 4,197"):
        attach(address(memory), 101)
    with pytest.raises(OSError, match="separate containers"):
        attach(address(memory, key=json.loads(other.address)["key"]), 100)
    with pytest.raises(OSError, match="No such file"):
        attach(address(memory, file=9999), 100)
    with pytest.raises(OSError, match="no memory to share"):
        attach("", 100)


def test_messages_need_none():
    memory = ProcessMemory()
    assert isinstance(memory.part("rows", shared=False), PrivateMemory)
    assert isinstance(memory.part("rows", shared=True), SharedMemory)
    np.testing.assert_equal(len(PrivateMemory().allocate(12)), 12)


@pytest.mark.parametrize("kind", [PrivateMemory, SharedMemory])
def test_memory_of_a_process_comes_in_steps_too(kind, monkeypatch):
    memory, size = kind(), 50 * mmap.PAGESIZE
    array = memory.allocate(size, [slice(0, 100)])
    array[:100] = 1
    assert memory.extend(slice(100, size)) == ""
    assert not array[100:].any()
    array[:] = 2
    memory.release(slice(40, size))
    assert (array[: mmap.PAGESIZE] == 2).all()
    assert not array[2 * mmap.PAGESIZE : -mmap.PAGESIZE].any(), "other pages come anew when they are touched"
    monkeypatch.setattr(shared_memory, "free_memory", lambda: 5.0)
    assert memory.extend(slice(0, 7)) == "7 bytes are needed, 5 are free"


def bytes_in_huge_pages(memory):
    """Bytes of mapped shared memory that lie in huge pages here, by the kernel's account."""
    place, found, inside = memory.ctypes.data, 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        name, *rest = line.split()
        if "-" in name and not name.endswith(":"):
            start, stop = (int(each, 16) for each in name.split("-"))
            inside = start < place + len(memory) and place < stop
        elif inside and name == "ShmemPmdMapped:":
            found += 1024 * int(rest[0])
    return found


OFFERED = Path("/sys/kernel/mm/transparent_hugepage/shmem_enabled")
needs_huge_pages = pytest.mark.skipif(
    not huge_page()
    or tuple(map(int, os.uname().release.split(".")[:2])) < (6, 1)
    or (OFFERED.is_file() and "[deny]" in OFFERED.read_text()),
    reason="this kernel has no huge pages, refuses them, or cannot collapse pages to them",
)


@needs_huge_pages
@pytest.mark.parametrize("kept", [True, False])
def test_rows_lie_in_huge_pages_for_all_who_map_them(kept, memory_folder):
    """Addresses and places in the file agree, or none could be used; what is beyond the last one stays in small pages.
    The memory of a rank has its arrays one after the other.
    """
    huge, size = huge_page(), 4 * huge_page() + 5_000
    ranks = MemoryFile(memory_folder / "run" / "ps-0", Origin("run", "ps 0", 0)) if kept else ProcessMemory()
    if kept:
        ranks.array("counts", (5_000,), "i8")
    memory = ranks.part("rows", shared=True)
    mine = memory.allocate(size)
    assert not mine.any()
    mine[:] = np.arange(size // 8 + 1, dtype=np.uint64).view(np.uint8)[:size]
    other = attach(memory.address, size)
    assert np.array_equal(other, mine)
    for each in (mine, other):
        assert 3 * huge <= bytes_in_huge_pages(each) <= 4 * huge


@needs_huge_pages
def test_memory_that_grows_takes_no_more_than_it_was_given(memory_folder):
    """Only whole huge pages of the bytes that are there: what lies between two parts is not allocated."""
    huge = huge_page()
    ranks = MemoryFile(memory_folder / "run" / "ps-0", Origin("run", "ps 0", 0))
    memory = ranks.part("rows", shared=True)
    mine = memory.allocate(64 * huge, [slice(0, 4096)])
    before = os.fstat(memory.file).st_blocks * 512
    assert not memory.extend(slice(4096, 6 * huge + 4096))
    assert os.fstat(memory.file).st_blocks * 512 - before <= 6 * huge + mmap.PAGESIZE
    mine[: 6 * huge] = 7
    assert 4 * huge <= bytes_in_huge_pages(mine) <= 6 * huge
    memory.release(slice(huge, 3 * huge))
    assert not mine[huge : 3 * huge].any()
    assert (mine[:huge] == 7).all()
    assert (mine[3 * huge : 6 * huge] == 7).all()
