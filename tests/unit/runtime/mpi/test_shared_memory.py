"""Memory that another process maps: found by its address, and nothing else taken for it."""

import json
import mmap
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from ssmpi.runtime.mpi import shared_memory
from ssmpi.runtime.mpi.rank_memory import ProcessMemory
from ssmpi.runtime.mpi.shared_memory import HEADER, PrivateMemory, SharedMemory, attach

OTHER = """
import sys
from ssmpi.runtime.mpi.rank_memory import ProcessMemory
from ssmpi.runtime.mpi.shared_memory import attach
room = attach(sys.argv[1], 10_000)
room[7] += 1
print(room.sum())
"""


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
