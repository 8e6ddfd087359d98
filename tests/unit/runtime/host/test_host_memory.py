"""What the system's files say of memory: limits of control groups, and processes killed for lack of it."""

import pytest

from ssmpi.runtime.host.host_memory import memory_limit, oom_kills

GIB = 2**30


@pytest.fixture
def write(tmp_path):
    def write(path, content):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(f"{content}\n")

    write("proc/meminfo", f"MemTotal: {64 * 2**20} kB\nMemAvailable: 1 kB")
    write("proc/vmstat", "pgfault 5\noom_kill 7")
    return write


def test_the_memory_of_a_host_is_that_of_its_tightest_limit(tmp_path, write):
    assert memory_limit(tmp_path / "nowhere") == float("inf")
    assert memory_limit(tmp_path) == 64 * GIB
    write("proc/self/cgroup", "0::/job/step")
    write("sys/fs/cgroup/job/step/memory.max", "max")
    write("sys/fs/cgroup/job/memory.max", 12 * GIB)
    assert memory_limit(tmp_path) == 12 * GIB


@pytest.mark.parametrize(
    ("groups", "file", "content"),
    [
        ("0::/job/step", "job/step/memory.events", "oom 4\noom_kill 3\noom_group_kill 0"),
        ("4:memory:/job/step", "memory/job/step/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 3"),
    ],
)
def test_processes_killed_for_memory_are_those_of_the_own_group(tmp_path, write, groups, file, content):
    assert oom_kills(tmp_path / "nowhere") == 0
    write("proc/self/cgroup", groups)
    assert oom_kills(tmp_path) == 7  # of the whole machine: no group counts them
    write(f"sys/fs/cgroup/{file}", content)
    assert oom_kills(tmp_path) == 3
