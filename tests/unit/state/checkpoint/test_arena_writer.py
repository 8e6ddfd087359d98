"""Whether there is memory for the copy that a checkpoint is written from."""

import numpy as np
import pytest
from rows import row_options

from ssmpi.embedding.placement import place
from ssmpi.embedding.table import Arena
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
    """SLURM's is two or three groups above the process; idle pages of files are given up when they are needed."""
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
        write(f"{group}/memory.stat", f"anon 1\n{idle} {3 * GIB}")
    assert free_memory(root) == (12 - 8 + 3) * GIB


@pytest.mark.parametrize(("sharers", "copied"), [(1, True), (2, False)])
def test_who_shares_a_host_shares_its_free_memory(tmp_path, monkeypatch, sharers, copied):
    """All copy at the same moment: each must leave room for the others."""
    arena = Arena(row_options(dim=4), place((1000,) * 26, 1), 0, seed=1)
    needed = arena.weights.nbytes + arena.state.nbytes
    monkeypatch.setattr(arena_writer, "free_memory", lambda: 1.5 * needed / arena_writer.MOST)
    one = ArenaWriter(sharers)
    one.begin(arena, tmp_path / "embedding-0000.h5", 60, background=True)
    assert bool(one._copies) == copied
    while one.outcome() is None:
        pass
    assert "error" not in one.outcome()
    again = Arena(row_options(dim=4), place((1000,) * 26, 1), 0, seed=2)
    again.load(tmp_path / "embedding-0000.h5", again.loading())
    np.testing.assert_array_equal(again.weights, arena.weights)
