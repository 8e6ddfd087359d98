"""Memory that outlives its process: another process finds what was left, or why it cannot use it."""

import gc
import json
import mmap
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
from faults import no_room
from ranks import PATIENCE

from ssmpi.runtime.errors import DataError
from ssmpi.runtime.host import memory_folder
from ssmpi.runtime.host.memory_folder import claim, in_use
from ssmpi.runtime.host.mpi_environment import SEGMENTS, make_segments_folder
from ssmpi.runtime.mpi import rank_memory, shared_memory
from ssmpi.runtime.mpi.rank_memory import FIXED, HEADER, LostMemoryError, MemoryFile, Origin, ProcessMemory, remove
from ssmpi.runtime.mpi.shared_memory import attach

ORIGIN, PAGE = Origin("run", "trainer 0", 1), mmap.PAGESIZE
DIES = """
import os, signal, sys
from pathlib import Path
from ssmpi.runtime.mpi.rank_memory import MemoryFile, Origin
memory = MemoryFile(Path(sys.argv[1]), Origin("run", "trainer 0", 1))
memory.array("rows", (3, 2), "f4")[:] = [[1, 2], [3, 4], [5, 6]]
memory.note(deal=[7], begun=1)
memory.ready()
memory.note(deal=[8])
os.kill(os.getpid(), signal.SIGKILL)
"""

WRITES = """
import itertools, os, sys, threading
from pathlib import Path
from ssmpi.runtime.mpi.rank_memory import MemoryFile, Origin
memory = MemoryFile(Path(sys.argv[1]), Origin("run", "trainer 0", 1))
count = memory.array("count", (1,), "i8")
part = memory.part("rows", shared=True, folder=sys.argv[2], hot=[slice(0, 16 * 4096)])
rows = part.allocate(256 * 4096).view("i8").reshape(256, 512)
memory.ready()
def write_back():
    while True:
        os.fdatasync(part.file)
        if count[0] > 1000:
            os.write(1, b"\\n")
threading.Thread(target=write_back, daemon=True).start()
for n in itertools.count(1):
    rows[n % 256] = n
    count[0] = n
"""


@pytest.fixture
def path(tmp_path):
    return tmp_path / "ssmpi-0-run" / "trainer-0"


@pytest.fixture
def shm():
    """The same in a memory file system: others round what they allocate."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        yield Path(folder) / "ssmpi-0-run" / "trainer-0"


def left_by(body):
    """What a function's memory leaves when nobody maps it any more."""
    body()
    gc.collect()


def find(path):
    return MemoryFile.found(path, "run", "trainer 0")


def leave(path, size=4):
    """Whole memory of one array."""

    def fill():
        memory = MemoryFile(path, ORIGIN)
        memory.array("rows", (size,), np.float32)[:] = 1
        memory.ready()

    left_by(fill)


def test_a_process_goes_on_with_what_a_killed_one_left(path):
    died = subprocess.run([sys.executable, "-c", DIES, path], check=False).returncode
    assert died == -signal.SIGKILL
    found = find(path)
    assert found.kept
    assert found.origin == ORIGIN
    np.testing.assert_array_equal(found.array("rows", (3, 2), np.float32), [[1, 2], [3, 4], [5, 6]])
    assert found.noted == {"deal": [8], "begun": 1}


def test_nobody_else_may_read_it(path):
    leave(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_it_is_removed_with_its_notes(path):
    memory = MemoryFile(path, ORIGIN)
    memory.note(begun=1)
    remove(path)
    assert list(path.parent.iterdir()) == []


def test_the_folder_can_vanish_while_a_rank_looks_for_its_files(path, monkeypatch):
    """The memory of this rank found no room and is gone already; another one that ends removes the folder."""
    leave(path)
    for left in path.parent.iterdir():
        left.unlink()
    listed = os.scandir

    def too_late(folder):
        path.parent.rmdir()
        return listed(folder)

    monkeypatch.setattr(os, "scandir", too_late)
    remove(path)
    assert not path.parent.exists()


def test_what_is_not_filled_yet_is_lost(path):
    left_by(lambda: MemoryFile(path, ORIGIN).array("rows", (4,), np.float32))
    with pytest.raises(LostMemoryError, match="was not filled yet"):
        find(path)


def test_what_was_removed_is_lost(path):
    with pytest.raises(LostMemoryError, match="No such file"):
        find(path)


@pytest.mark.parametrize(
    ("lose", "why"),
    [(Path.unlink, "it was removed"), (lambda notes: notes.write_text('{"begun": '), "damaged")],
    ids=["removed", "cut off"],
)
def test_without_its_notes_it_is_lost(path, lose, why):
    """Some sites remove files that are old and that nobody has open: notes are."""
    leave(path)
    notes = path.parent / "trainer-0.notes.json"
    assert find(path).noted == {}
    gc.collect()
    lose(notes)
    with pytest.raises(LostMemoryError, match=rf"trainer-0\.notes\.json: {why}"):
        find(path)


def test_ranks_of_a_host_do_not_count_on_the_same_room(path, monkeypatch):
    """Each finds room for itself, both at once: only one of them has it."""
    memories = [MemoryFile(path.with_name(f"trainer-{k}"), Origin("run", f"trainer {k}", 1)) for k in range(2)]
    size, used = 4 * HEADER, [0]

    def free():
        found = size - used[0]
        time.sleep(0.05)
        return found

    def reserve(file, start, more):
        used[0] += more

    monkeypatch.setattr(shared_memory, "free_memory", free)
    monkeypatch.setattr(shared_memory.os, "posix_fallocate", reserve)
    grown = [threading.Thread(target=memory._grow, args=(size, None)) for memory in memories]
    for thread in grown:
        thread.start()
    for thread in grown:
        thread.join()
    assert sorted(bool(memory._failed) for memory in memories) == [False, True]


@pytest.mark.parametrize(
    ("place", "values", "why"),
    [
        (FIXED.size + 2, b"!", "its header is damaged"),
        (rank_memory.KEY, b"other", "no memory of ssmpi"),
    ],
)
def test_a_torn_header_is_lost(path, place, values, why):
    leave(path)
    with path.open("r+b") as file:
        file.seek(place)
        file.write(values)
    with pytest.raises(LostMemoryError, match=why):
        find(path)


@pytest.mark.parametrize(
    ("size", "why"),
    [
        (HEADER - 1, "cut off"),
        (HEADER, "it has 16,384 bytes, not 20,480"),
        (HEADER + 2 * PAGE, "it has 24,576 bytes, not 20,480"),
    ],
)
def test_a_file_of_another_size_is_lost(path, size, why):
    leave(path)
    os.truncate(path, size)
    with pytest.raises(LostMemoryError, match=why):
        find(path)


def test_another_version_of_the_layout_is_lost(path, monkeypatch):
    leave(path)
    monkeypatch.setattr(rank_memory, "LAYOUT", rank_memory.LAYOUT + 1)
    with pytest.raises(LostMemoryError, match="another version"):
        find(path)


def test_memory_of_another_rank_is_lost(path):
    leave(path)
    with pytest.raises(LostMemoryError, match="it belongs to trainer 0 of run run"):
        MemoryFile.found(path, "run", "trainer 1")


def test_an_array_of_another_size_is_lost(path):
    leave(path)
    with pytest.raises(LostMemoryError, match="'rows' has 16 bytes, not 20"):
        find(path).array("rows", (5,), np.float32)


def test_who_still_maps_it_keeps_others_out(path, monkeypatch):
    """Another rank of the last start, which was not the owner, and does not end."""
    monkeypatch.setattr(rank_memory, "LOCK_SECONDS", 0.05)
    memory = MemoryFile(path, ORIGIN)
    part = memory.part("rows", shared=True)
    part.allocate(100)[:] = 3
    memory.ready()
    mapped = attach(part.address, 100)
    del memory, part
    gc.collect()
    with pytest.raises(LostMemoryError, match="still maps it after"):
        find(path)
    assert mapped.sum() == 300
    del mapped
    gc.collect()
    assert find(path).part("rows", shared=True).allocate(100).sum() == 300


def test_two_that_map_it_see_the_same(path):
    memory = MemoryFile(path, ORIGIN)
    memory.array("before", (1000,), np.float64)
    part = memory.part("rows", shared=True)
    mine = part.allocate(6000)
    attach(part.address, 6000)[5000] = 9
    assert mine[5000] == 9
    with pytest.raises(OSError, match="another one"):
        attach(json.dumps(json.loads(part.address) | {"key": "00"}), 6000)
    assert memory.part("own", shared=False).address == b""


def rows_on_disk(path, disk, start=1):
    """Memory of which an array, 4 x 1, lies on a disk."""

    def fill():
        memory = MemoryFile(path, Origin("run", "trainer 0", start))
        memory.part("rows", shared=True, folder=str(disk)).allocate(PAGE)[:4] = 1
        memory.array("counts", (4,), np.float32)[:] = 2
        memory.ready()

    left_by(fill)


def test_rows_on_disk_are_found_with_the_memory(path, disk):
    rows_on_disk(path, disk)
    found = find(path)
    part = found.part("rows", shared=True, folder=str(disk))
    assert part.kept
    assert part.allocate(PAGE)[:5].tolist() == [1, 1, 1, 1, 0]
    assert attach(part.address, PAGE)[3] == 1
    assert found.array("counts", (4,), np.float32).tolist() == [2] * 4
    found.remove()
    assert not path.parent.exists()
    assert list(disk.iterdir()) == []


def test_hot_rows_outlive_a_kill_in_memory(path, disk):
    """Others map them with the rest, and the file on disk has nothing where they are."""
    hot = [slice(PAGE, 2 * PAGE), slice(4 * PAGE, 6 * PAGE)]

    def fill():
        memory = MemoryFile(path, Origin("run", "trainer 0", 1))
        part = memory.part("rows", shared=True, folder=str(disk), hot=hot)
        part.allocate(8 * PAGE)[:] = np.arange(8).repeat(PAGE)
        attach(part.address, 8 * PAGE)[4 * PAGE] = 9
        memory.ready()

    left_by(fill)
    (there,) = disk.glob("*/trainer-0")
    on_disk = np.fromfile(there, np.uint8)[HEADER : HEADER + 8 * PAGE]
    assert on_disk[::PAGE].tolist() == [0, 0, 2, 3, 0, 0, 6, 7]
    part = find(path).part("rows", shared=True, folder=str(disk))
    assert part.allocate(8 * PAGE)[::PAGE].tolist() == [0, 1, 2, 3, 9, 5, 6, 7]
    assert attach(part.address, 8 * PAGE)[PAGE - 1 :: PAGE].tolist() == list(range(8))


def test_hot_rows_that_come_in_steps_are_reserved_with_these(path, disk):
    """They outlive a kill as others."""
    hot, size = [slice(PAGE, 40 * PAGE)], 64 * PAGE

    def fill():
        memory = MemoryFile(path, Origin("run", "trainer 0", 1))
        part, before = memory.part("rows", shared=True, folder=str(disk), hot=hot), path.stat().st_blocks
        array = part.allocate(size, [slice(0, 2 * PAGE)])
        assert path.stat().st_blocks - before == PAGE // 512
        with patch.object(rank_memory, "keep", lambda *_, **__: "no room"):
            assert part.extend(slice(2 * PAGE, 3 * PAGE)) == "no room"
        assert part.extend(slice(2 * PAGE, size)) == ""
        assert path.stat().st_blocks - before == 39 * PAGE // 512
        array[::PAGE] = np.arange(64)
        assert attach(part.address, size)[::PAGE].tolist() == list(range(64))
        memory.ready()

    left_by(fill)
    part = find(path).part("rows", shared=True, folder=str(disk))
    assert part.hot == hot
    assert part.allocate(size, [slice(0, 2 * PAGE)])[::PAGE].tolist() == list(range(64))


@pytest.mark.parametrize("seconds", [0.0, 0.01, 0.05])
def test_a_kill_while_rows_are_written_to_the_disk_loses_none(path, disk, seconds):
    """Only the page that was being changed may be half old."""
    with subprocess.Popen([sys.executable, "-c", WRITES, path, disk], stdout=subprocess.PIPE) as rank:
        rank.stdout.readline()
        time.sleep(seconds)
        rank.kill()
    found = find(path)
    (last,) = found.array("count", (1,), np.int64)
    rows = found.part("rows", shared=True, folder=str(disk)).allocate(256 * PAGE).view(np.int64).reshape(256, -1)
    assert last > 256
    for page in set(range(256)) - {(last + 1) % 256}:
        assert (rows[page] == last - (last - page) % 256).all()


def test_hot_rows_end_with_their_process_where_memory_has_no_room(path, disk, monkeypatch):
    memory = MemoryFile(path, ORIGIN)
    monkeypatch.setattr(shared_memory, "free_memory", lambda: 0.0)
    part = memory.part("rows", shared=True, folder=str(disk), hot=[slice(0, PAGE)])
    array = part.allocate(2 * PAGE)
    array[:] = 1
    assert attach(part.address, 2 * PAGE).all()
    assert not path.exists()


def test_hot_rows_without_a_launcher(disk):
    part = ProcessMemory().part("rows", shared=True, folder=str(disk), hot=[slice(PAGE, 2 * PAGE)])
    array = part.allocate(3 * PAGE)
    array[:] = np.arange(3).repeat(PAGE)
    assert attach(part.address, 3 * PAGE)[::PAGE].tolist() == [0, 1, 2]
    on_disk = Path(f"/proc/self/fd/{part.file}").read_bytes()[shared_memory.HEADER :: PAGE]
    assert list(on_disk) == [0, 0, 2]


def test_rows_on_disk_that_were_filled_before_a_role_starts_are_kept(path, disk):
    """As those of a lost embedding PS, which are loaded while the job decides."""
    memory = MemoryFile(path, ORIGIN)
    memory.part("rows", shared=True, folder=str(disk)).allocate(PAGE)[:] = 7
    part = memory.part("rows", shared=True, folder=str(disk))
    assert part.kept
    assert part.allocate(PAGE)[0] == 7


@pytest.mark.parametrize(
    ("lose", "why"),
    [
        (lambda path, there: remove(path), "No such file"),  # as after a crash of the host
        (lambda path, there: remove(there), "No such file"),
        (lambda path, there: os.truncate(there, HEADER), "bytes, not"),
    ],
    ids=["memory gone", "rows gone", "cut off"],
)
def test_rows_on_disk_and_memory_are_lost_together(path, disk, lose, why):
    rows_on_disk(path, disk)
    lose(path, disk / path.parent.name / path.name)
    with pytest.raises(LostMemoryError, match=why):
        find(path)


def test_rows_of_another_start_are_lost(path, disk, tmp_path):
    """The memory is that of start 1, and the next one had begun to replace it."""
    rows_on_disk(path, disk)
    kept = shutil.copytree(path.parent, tmp_path / "copy", copy_function=shutil.copy2)
    rows_on_disk(path, disk, 2)
    shutil.copytree(kept, path.parent, dirs_exist_ok=True)
    with pytest.raises(LostMemoryError, match="those of another start"):
        find(path)


def test_rows_on_disk_name_the_run_that_they_belong_to(path, disk):
    """Or 'ssmpi doctor --clean' would remove them between two starts, when nobody maps them."""
    memory = MemoryFile(path, ORIGIN)
    memory.note(run="/runs/a")
    memory.part("rows", shared=True, folder=str(disk)).allocate(PAGE)
    assert memory_folder.runs_of(disk / path.parent.name) == {Path("/runs/a")}
    memory.remove()


def test_a_disk_without_room_ends_the_job_and_nothing_is_left(path, disk, monkeypatch):
    memory = MemoryFile(path, ORIGIN)
    monkeypatch.setattr(shared_memory, "free_memory", lambda: 0.0)
    memory.part("rows", shared=True, folder=str(disk)).allocate(PAGE)[:] = 1  # memory is no limit
    monkeypatch.setattr(shared_memory, "_free", lambda *_, **__: HEADER + 5000)
    for each in (memory, ProcessMemory()):
        part = each.part("others", shared=True, folder=str(disk))
        with pytest.raises(DataError, match=r"storage: no room in .*/disk: 10.,... bytes are needed, 21,384 are free"):
            part.allocate(100_000 + PAGE)
    assert [each for each in disk.rglob("*") if each.is_file()] == []


@pytest.mark.parametrize("first", [None, [slice(0, PAGE)]], ids=["whole", "in steps"])
def test_rows_on_disk_without_a_launcher_leave_no_file(disk, first):
    part = ProcessMemory().part("rows", shared=True, folder=str(disk))
    array = part.allocate(SIZE, first)
    assert part.extend(slice(SIZE - PAGE, SIZE)) == ""
    array[-1] = 5
    assert attach(part.address, SIZE)[-1] == 5
    assert list(disk.iterdir()) == []


@pytest.mark.parametrize(
    ("kind", "why"), [("tmpfs", "in memory: leave the setting out"), ("nfs4", "on the network"), ("fuse.sshfs", "on")]
)
def test_rows_are_kept_on_a_disk_of_this_host_only(path, tmp_path, monkeypatch, kind, why):
    system = memory_folder.FileSystem(kind, 1 << 40, 1 << 40)
    monkeypatch.setattr(memory_folder, "file_system", lambda _: system)
    for memory in (MemoryFile(path, ORIGIN), ProcessMemory()):
        with pytest.raises(DataError, match=f"a folder of {kind}, which is {why}"):
            memory.part("rows", shared=True, folder=str(tmp_path))
        with pytest.raises(DataError, match="no such folder on"):
            memory.part("rows", shared=True, folder=str(tmp_path / "none"))


def test_without_room_training_goes_on_and_nothing_is_left(path, monkeypatch, caplog):
    monkeypatch.setattr(shared_memory, "free_memory", lambda: HEADER + 5000.0)
    memory = MemoryFile(path, ORIGIN)
    memory.array("small", (4,), np.float32)[:] = 1
    part = memory.part("rows", shared=True)
    big = part.allocate(40_000)
    assert big.size == 40_000
    assert memory.array("later", (3,), np.int64).tolist() == [0, 0, 0]
    attach(part.address, 40_000)[7] = 5  # others of the host reach it as ever
    assert big[7] == 5
    memory.note(begun=1)
    memory.ready()
    assert list(path.parent.iterdir()) == []
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "40,960 bytes are needed, 21,384 are free" in caplog.text
    assert "recovery.memory_folder" in caplog.text


def test_a_full_file_system_is_no_signal(path, inject, caplog):
    """Where the kernel refuses what arithmetic allowed."""
    memory = MemoryFile(path, ORIGIN)
    inject(shared_memory.os, "posix_fallocate", no_room)
    assert memory.array("rows", (4,), np.float32).tolist() == [0, 0, 0, 0]
    assert "No space left on device" in caplog.text


SIZE = 64 * PAGE  # in steps: the first page and the tenth are there


def in_steps(path, size=SIZE):
    """A memory file with an array of so many bytes, that array, and how many bytes of the file are there."""
    memory = MemoryFile(path, ORIGIN)
    part = memory.part("rows", shared=True)
    array = part.allocate(size, [slice(0, PAGE), slice(9 * PAGE, 10 * PAGE)])
    return part, array, lambda: path.stat().st_blocks * 512 - HEADER


def test_memory_comes_in_steps_and_goes(shm):
    part, array, there = in_steps(shm)
    assert there() == 2 * PAGE
    array[:4], array[9 * PAGE] = 7, 8
    others = attach(part.address, SIZE)
    assert part.extend(slice(PAGE, 4 * PAGE + 5)) == ""
    assert there() == 6 * PAGE
    assert not array[PAGE : 5 * PAGE].any()
    array[3 * PAGE - 1 : 3 * PAGE + 1] = 9
    assert others[3 * PAGE] == 9
    assert part.extend(slice(0, 4 * PAGE)) == "", "what is there stays as it is"
    assert array[:4].tolist() == [7] * 4
    part.release(slice(3, 4 * PAGE))
    assert there() == 3 * PAGE, "whole pages of it are gone"
    assert (array[2], array[9 * PAGE]) == (7, 8)
    shutil.rmtree(shm.parent)
    assert part.extend(slice(40 * PAGE, 41 * PAGE)) == "", "a file that was removed is mapped still"


def test_memory_in_steps_is_found_as_it_was(shm):
    def fill():
        part, array, _ = in_steps(shm)
        part.extend(slice(20 * PAGE, 21 * PAGE))
        array[20 * PAGE] = 5
        part._memory.ready()

    left_by(fill)
    part = find(shm).part("rows", shared=False)
    array = part.allocate(SIZE, [slice(0, PAGE)])
    assert (array[20 * PAGE], part.kept) == (5, True)
    assert part.extend(slice(21 * PAGE, 22 * PAGE)) == ""
    assert shm.stat().st_blocks * 512 == HEADER + 4 * PAGE


def test_a_step_without_room_says_why(shm, inject, monkeypatch):
    part, _, there = in_steps(shm)
    with monkeypatch.context() as short:
        short.setattr(shared_memory, "free_memory", lambda: PAGE - 1.0)
        assert part.extend(slice(PAGE, 2 * PAGE)) == f"{PAGE:,} bytes are needed, {PAGE - 1:,} are free"
    inject(shared_memory.os, "posix_fallocate", no_room)
    assert "No space left on device" in part.extend(slice(PAGE, 2 * PAGE))
    assert there() == 2 * PAGE


def test_what_ranks_were_promised_is_not_free_for_others(shm, monkeypatch, caplog):
    """The first one's steps fit, and later ones' memory ends with their processes."""
    room = 100 * PAGE
    monkeypatch.setattr(
        shared_memory, "_free", lambda *_, **__: room - sum(p.stat().st_blocks * 512 for p in shm.parent.iterdir())
    )
    part, _, _ = in_steps(shm)
    other = shm.with_name("trainer-1")
    whole, steps = (MemoryFile(other, Origin("run", "trainer 1", 1)).part("rows", shared=True) for _ in range(2))
    for each, first in ((whole, None), (steps, [slice(0, PAGE)])):
        array = each.allocate(60 * PAGE, first)
        assert each.extend(slice(PAGE, 60 * PAGE)) == ""
        array[:] = 1
        assert not other.exists()
    assert caplog.text.count("no room for the memory of trainer 1") == 2
    assert part.extend(slice(0, SIZE)) == ""


def test_sparse_files_of_others_are_no_promises(shm):
    """Only the launch's own folder, mode 0700, counts: others' files may be sparse and never be filled."""
    in_steps(shm)
    before = shared_memory.promised(shm.parent)
    assert before == SIZE - 2 * PAGE
    with tempfile.NamedTemporaryFile(dir=shm.parent.parent) as other:
        os.truncate(other.name, 1 << 30)
        assert shared_memory.promised(shm.parent) == before


def test_segments_of_the_mpi_library_are_no_promises(shm):
    """16 MiB of each rank, of which it uses little: in docker's /dev/shm of 64 MB nothing seemed to be free."""
    in_steps(shm)
    before = shared_memory.promised(shm.parent)
    with (shm.parent / "sm_segment.h.0.1").open("wb") as segment:
        segment.truncate(1 << 24)
    assert shared_memory.promised(shm.parent) == before


def test_what_was_filled_before_the_role_began_is_there_and_nothing_else(path):
    """A lost rank's rows are loaded first; its role finds them, and makes the rest."""
    memory = MemoryFile(path, ORIGIN)
    memory.part("rows", shared=False).allocate(8)[:] = 5
    assert (memory.holds("rows"), memory.holds("other"), memory.kept) == (True, False, False)
    again, other = (memory.part(name, shared=False) for name in ("rows", "other"))
    assert (again.kept, other.kept) == (True, False)
    assert again.allocate(8).tolist() == [5] * 8
    with pytest.raises(LostMemoryError, match="'rows' has 8 bytes, not 9"):
        again.allocate(9)


# Other users of the host


def planted(folder, how):
    """A launch's folder as another user of the host may have made it, before this user did."""
    folder.parent.mkdir(exist_ok=True)
    if how == "link":
        (elsewhere := folder.parent / "elsewhere").mkdir(mode=0o700)
        folder.symlink_to(elsewhere)
        return
    folder.mkdir(mode=0o700)
    if how == "mode":
        folder.chmod(0o777)
    elif os.geteuid() == 0:
        os.chown(folder, 65534, -1)
    else:
        pytest.skip("only root can give a folder away")


@pytest.mark.parametrize(
    ("how", "why"), [("link", "not a folder but a link"), ("mode", "mode 0777"), ("owner", "it is user 65534's")]
)
def test_a_folder_of_another_user_is_not_used(path, how, why):
    planted(path.parent, how)
    with pytest.raises(PermissionError, match=why):
        MemoryFile(path, ORIGIN)
    with pytest.raises(LostMemoryError, match=why):
        find(path)
    assert list(path.parent.iterdir()) == []


def test_a_folder_that_others_may_replace_is_not_used(path):
    path.parent.parent.chmod(0o777)
    with pytest.raises(PermissionError, match="every user may replace"):
        MemoryFile(path, ORIGIN)
    path.parent.parent.chmod(0o1777)
    MemoryFile(path, ORIGIN)


def test_links_in_a_folder_are_not_followed(path, tmp_path):
    """However they came there: what they lead to is another file of this user."""
    leave(path)
    mine = tmp_path / "mine"
    for planted in (path.with_name(".trainer-0.notes.json"), path.with_name("launcher")):
        mine.write_text("precious")
        planted.symlink_to(mine)
    find(path).note(begun=1)
    with pytest.raises(OSError, match="symbolic links"):
        claim(path.parent)
    assert mine.read_text() == "precious"
    assert not in_use(path.parent)
    path.rename(tmp_path / "moved")
    path.symlink_to(tmp_path / "moved")
    with pytest.raises(LostMemoryError, match="symbolic links"):
        find(path)


def test_mpi_keeps_no_segments_in_a_folder_of_another_user(tmp_path, monkeypatch):
    """What the user has chosen for them stays, whoever owns it."""
    monkeypatch.setenv(SEGMENTS, str(tmp_path))
    tmp_path.chmod(0o1777)
    make_segments_folder()
    assert os.environ[SEGMENTS] == str(tmp_path)
    folder = memory_folder.of_launch(str(tmp_path), "abc")
    monkeypatch.setenv(SEGMENTS, str(folder))
    make_segments_folder()
    assert (os.environ[SEGMENTS], folder.is_dir()) == (str(folder), True)
    folder.chmod(0o777)
    make_segments_folder()
    assert SEGMENTS not in os.environ


# A note that finds no room


class Blocked:
    """No note can be written: folders lie where they would be."""

    def __init__(self, path, monkeypatch):
        self._places = [path.with_name(f".{path.name}.notes.json")]
        for place in self._places:
            place.mkdir()
        monkeypatch.setattr(rank_memory, "RETRY_SECONDS", 0.01)

    def end(self):
        for place in self._places:
            place.rmdir()


def wait_for(happened):
    deadline = time.monotonic() + PATIENCE
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def copied(path, to):
    """What a kill at this moment would leave, which no process maps."""
    shutil.rmtree(to, ignore_errors=True)
    shutil.copytree(path.parent, to)
    return to / path.name


@pytest.mark.parametrize("again", [False, True], ids=["first start", "restart"])
def test_a_note_without_room_ends_protection_only_until_there_is_room(path, monkeypatch, caplog, again):
    if again:
        leave(path)
        memory = find(path)
    else:
        memory = MemoryFile(path, ORIGIN)
        memory.array("rows", (4,), np.float32)[:] = 1
        memory.note(begun=1)
        memory.ready()
    blocked, left = Blocked(path, monkeypatch), path.parent.parent / "ssmpi-0-copy"
    memory.note(begun=2)
    memory.note(pieces=3)
    assert memory.noted == {"begun": 2, "pieces": 3}
    with pytest.raises(LostMemoryError, match="no room for its notes"):
        find(copied(path, left))
    blocked.end()
    wait_for(lambda: "outlives a kill again" in caplog.text)
    found = find(copied(path, left))
    assert found.noted == {"begun": 2, "pieces": 3}
    assert found.array("rows", (4,), np.float32).tolist() == [1] * 4
    assert caplog.text.count("notes cannot be written") == 1
    memory.note(begun=4)
    assert find(copied(path, left)).noted["begun"] == 4


def test_memory_that_is_filled_while_a_note_waits_is_incomplete(path, monkeypatch, caplog):
    memory, left = MemoryFile(path, ORIGIN), path.parent.parent / "ssmpi-0-copy"
    blocked = Blocked(path, monkeypatch)
    memory.note(begun=1)
    memory.ready()
    with pytest.raises(LostMemoryError, match="no room for its notes"):
        find(copied(path, left))
    blocked.end()
    wait_for(lambda: "outlives a kill again" in caplog.text)
    assert find(copied(path, left)).noted["begun"] == 1


def test_a_run_that_ends_without_room_for_a_note_leaves_nothing(path, monkeypatch):
    memory = MemoryFile(path, ORIGIN)
    written = Path.replace
    memory.note(begun=1)
    monkeypatch.setattr(rank_memory, "RETRY_SECONDS", 0.01)
    monkeypatch.setattr(Path, "replace", lambda *_: os.open(path / "nowhere", os.O_RDONLY))
    memory.note(begun=2)
    memory.remove()
    monkeypatch.setattr(Path, "replace", written)
    wait_for(lambda: not memory._retrying)
    assert not path.parent.exists()
