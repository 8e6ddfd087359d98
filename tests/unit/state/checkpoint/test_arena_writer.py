"""The copy that a checkpoint is written from: its moment, its memory, and whether there is room for it."""

import threading

import numpy as np
import pytest
from rows import row_options

from ssmpi.embedding.placement import place
from ssmpi.embedding.table import Arena
from ssmpi.runtime.run_options import CheckpointOptions
from ssmpi.state.checkpoint import arena_writer
from ssmpi.state.checkpoint.arena_writer import ArenaWriter, free_memory

GIB = 2**30


@pytest.fixture
def machine(tmp_path):
    """A machine's files; 100 GiB are free, unless a control group has less."""

    def write(path, content):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(f"{content}\n")

    write("proc/meminfo", f"MemTotal: 1 kB\nMemAvailable: {100 * 2**20} kB")
    return tmp_path, write


def test_without_limits_all_that_is_free_may_be_taken(machine):
    root, write = machine
    assert free_memory(root) == 100 * GIB
    write("proc/self/cgroup", "0::/")
    assert free_memory(root) == 100 * GIB
    assert free_memory(root / "nowhere") == float("inf")


@pytest.mark.parametrize("version", [1, 2])
def test_the_limit_of_a_batch_job_counts_wherever_above_the_process_it_is(machine, version):
    """SLURM's is two or three groups above the process; pages of files are given up when memory is needed."""
    root, write = machine
    place = "slurm/uid_0/job_7/step_0/task_0"
    top, limit, used, idle, no_limit = (
        ("memory/", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file", str(2**63 - 4096))
        if version == 1
        else ("", "memory.max", "memory.current", "inactive_file", "max")
    )
    write("proc/self/cgroup", f"4:cpuset,cpu:/x\n7:memory:/{place}\n0::/" if version == 1 else f"0::/{place}")
    for above, most, taken in ((place, no_limit, 5 * GIB), ("slurm/uid_0/job_7", 12 * GIB, 8 * GIB)):
        group = f"sys/fs/cgroup/{top}{above}"
        write(f"{group}/{limit}", most)
        write(f"{group}/{used}", taken)
        write(f"{group}/memory.stat", f"anon 1\n{idle} {3 * GIB}\n{idle.replace('inactive', 'active')} {2 * GIB}")
    assert free_memory(root) == (12 - 8 + 3 + 2) * GIB


@pytest.mark.parametrize(("sharers", "disk", "copied"), [(1, "", True), (2, "", False), (1, "/disk", False)])
def test_who_shares_a_host_shares_its_free_memory(tmp_path, monkeypatch, sharers, disk, copied):
    """All copy at the same moment: each must leave room for the others, and for rows on disk that are in use."""
    arena = Arena(row_options(dim=4, storage=disk), place((1000,) * 26, 1), 0, seed=1)
    needed = arena.weights.nbytes + arena.state.nbytes
    monkeypatch.setattr(arena_writer, "free_memory", lambda: 1.5 * needed / arena_writer.MOST)
    one = ArenaWriter(sharers)
    one.begin(arena, tmp_path / "embedding-0000.h5", 60, background=True)
    assert bool(one._room.size) == copied
    while one.outcome() is None:
        pass
    assert "error" not in one.outcome()
    again = Arena(row_options(dim=4), place((1000,) * 26, 1), 0, seed=2)
    again.load(tmp_path / "embedding-0000.h5", again.loading())
    np.testing.assert_array_equal(again.weights, arena.weights)


def saved_weights(writer, arena, path):
    """The rows in the file of a save, which change as soon as it has begun."""
    held = threading.Event()
    with pytest.MonkeyPatch.context() as patch:
        at_once = arena_writer.written_in_background
        patch.setattr(arena_writer, "written_in_background", lambda *what: held.wait() and at_once(*what))
        writer.begin(arena, path, 60, background=True)
    arena.weights += 1
    held.set()
    assert "error" not in writer._writing.result(60)
    again = Arena(row_options(dim=4), place((1000,) * 26, 1), 0, seed=2)
    again.load(path, again.loading())
    return again.weights


def test_a_save_has_the_rows_of_its_moment(tmp_path):
    """Also the second one, into the same memory."""
    arena, writer = Arena(row_options(dim=4), place((1000,) * 26, 1), 0, seed=1), ArenaWriter(1)
    for path in (tmp_path / "embedding-0000.h5", tmp_path / "embedding-0001.h5"):
        before = arena.weights.copy()
        np.testing.assert_array_equal(saved_weights(writer, arena, path), before)
    assert len(writer._room._blocks) == 52  # weights and states of 26 tables, once


@pytest.mark.parametrize("interrupted", [False, True])
def test_memory_is_prefaulted_before_the_first_save_which_need_not_wait_for_it(tmp_path, monkeypatch, interrupted):
    """A save that comes earlier takes the lock as soon as the present slice is done."""
    arena, writer = Arena(row_options(dim=4), place((1000,) * 26, 1), 0, seed=1), ArenaWriter(1)
    monkeypatch.setattr(arena_writer, "SOON_SECONDS", 0.0)
    monkeypatch.setattr(arena_writer, "SLICE", 64)
    if interrupted:
        writer._room.wanted.set()
    monkeypatch.setattr(arena_writer, "start_background", lambda name, body, *arguments: body(*arguments))
    monkeypatch.setattr(arena_writer.os, "setpriority", lambda *_: None)  # this is the test's own thread
    writer.prefault(arena, CheckpointOptions(every_examples=1))
    monkeypatch.undo()
    blocks = list(writer._room._blocks)
    assert len(blocks) == (1 if interrupted else 52)
    before = arena.weights.copy()
    np.testing.assert_array_equal(saved_weights(writer, arena, tmp_path / "embedding-0000.h5"), before)
    assert all(block is there for block, there in zip(blocks, writer._room._blocks, strict=False))


@pytest.mark.parametrize(
    "options", [CheckpointOptions(every_minutes=0.0), CheckpointOptions(background=False, every_examples=1)]
)
def test_no_memory_is_taken_for_saves_that_never_come(monkeypatch, options):
    """Nor for those that training waits for."""
    monkeypatch.setattr(arena_writer, "start_background", None)
    ArenaWriter(1).prefault(Arena(row_options(dim=4), place((1000,) * 26, 1), 0, seed=1), options)


def test_a_copy_that_grows_has_room_to_grow():
    """Dynamic tables have more keys in each save: not every one allocates anew."""
    room = arena_writer.CopyRoom()
    first = [room((size,), np.dtype(np.float32)).base for size in (100, 104, 125) if not room.clear()]
    assert first[0] is not first[1]
    assert first[1] is first[2]
