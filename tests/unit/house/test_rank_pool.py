"""Real ranks that stay end when they must: no body meets what another one has left."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rank_pool import RankPool
from ranks import PATIENCE, TESTS, TimeLimitError, full_environment, python_path

from ssmpi.runtime.topology import Topology

PAIR = Topology(trainers=1, embedding_ps=1)


@pytest.fixture
def pool():
    pool = RankPool(2)
    yield pool
    pool.close()


def process(world):
    return os.getpid()


def fails_on(world, rank):
    if world.rank == rank:
        raise ValueError("on purpose")
    time.sleep(1000)


def hangs_on(world, rank):
    if world.rank == rank:
        time.sleep(1000)


def wait_for_the_end_of(pids):
    deadline = time.monotonic() + PATIENCE
    while any(Path(f"/proc/{pid}").exists() for pid in pids):
        assert time.monotonic() < deadline, "ranks are left"
        time.sleep(0.05)


def test_ranks_stay_until_a_body_fails_or_hangs(pool):
    first = pool.run(PAIR, process)
    assert pool.run(PAIR, process) == first
    with pytest.raises(AssertionError, match=r"rank 1: [\s\S]*ValueError: on purpose"):
        pool.run(PAIR, fails_on, 1)
    wait_for_the_end_of(first)
    others = pool.run(PAIR, process)
    assert not set(first) & set(others)
    with pytest.raises(TimeLimitError, match=r"not done after 0\.5 s"):
        pool.run(PAIR, hangs_on, 1, timeout=0.5)
    wait_for_the_end_of(others)


KILLED = """
from test_rank_pool import PAIR, RankPool, hangs_on, process
pool = RankPool(2)
print(*pool.run(PAIR, process), flush=True)
pool.run(PAIR, hangs_on, 1)
"""


@pytest.mark.soak
def test_ranks_end_with_a_test_process_that_is_killed():
    environ = full_environment({"PYTHONPATH": python_path(TESTS, Path(__file__).parent)})
    with subprocess.Popen([sys.executable, "-c", KILLED], stdout=subprocess.PIPE, env=environ) as process:
        pids = process.stdout.readline().split()
        process.send_signal(signal.SIGKILL)
    assert len(pids) == 2
    wait_for_the_end_of(map(int, pids))
