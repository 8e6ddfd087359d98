"""The pretended ranks of these tests keep MPI's promises, and only those."""

import contextlib
import gc
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import compiling
import numpy as np
import pytest
from numba.core import event
from ranks import TimeLimitError, over_threads
from runs import train_over_threads

from ssmpi.runtime.errors import PeerError
from ssmpi.runtime.mpi import failure
from ssmpi.runtime.mpi.inbox import Inbox
from ssmpi.runtime.mpi.waiting import WaitOptions, wait
from ssmpi.runtime.topology import Role, Topology

THREE = Topology(trainers=3)
WAITING = WaitOptions(time_limit_seconds=60)


def trainers(body, **settings):
    """What ``body(world)`` returns on the trainers."""
    return over_threads(THREE, on_trainers, body, **settings)[:3]


def on_trainers(world, body):
    return body(world, world.trainers) if world.role is Role.TRAINER else None


def test_a_buffer_that_changes_too_early_shows():
    def body(world, talk):
        value = np.array([talk.rank + 1.0])
        if talk.rank == 0:
            time.sleep(0.05)
            wait(talk.irecv(value, 1, 7), WAITING, "trainer 1")
        if talk.rank == 1:
            assert not talk.isend(value, 0, 7).Test()
            value[0] = 99.0  # not allowed before the request is complete
        return value[0]

    assert trainers(body)[0] == 99.0


def test_messages_of_one_thread_stay_in_order():
    def body(world, talk):
        inbox, got = Inbox(), []
        if talk.rank:
            for k in range(20):
                wait(talk.isend(np.array([k]), 0, talk.rank), WAITING, "trainer 0")
        while talk.rank == 0 and len(got) < 40:
            if message := talk.next_message(inbox):
                source, tag, payload = message
                assert source == tag
                got.append((source, int(payload.view(np.int64)[0])))
        return got

    got = trainers(body)[0]
    for source in (1, 2):
        assert [k for s, k in got if s == source] == list(range(20))


def test_compiling_does_not_count_towards_the_time_limit(monkeypatch):
    """The limit of a run whose kernels are new here is for what the ranks do, not for the compiler."""

    def body(world, talk):
        if talk.rank == 0:
            with event.trigger_event("numba:compile"):
                late[0] += 1000.0  # seconds
                time.sleep(0.3)  # the others look at the clock meanwhile
        wait(talk.ibarrier(), WAITING, "all")
        return True

    late = [0.0]
    monkeypatch.setattr(compiling, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + late[0]))
    assert trainers(body, timeout=30) == [True] * 3


def test_collectives():
    def body(world, talk):
        total, word = np.full(3, float(talk.rank)), np.array([talk.rank])
        for request in [talk.iallreduce(total), talk.ibcast(word), talk.ibarrier()]:
            wait(request, WAITING, "all")
        return total.tolist(), int(word[0]), talk.share(talk.rank), talk.gather(talk.rank)

    assert trainers(body) == [([3.0] * 3, 0, 0, [0, 1, 2])] * 3


def test_collectives_in_another_order_are_an_error():
    def body(world, talk):
        wait(talk.ibarrier() if talk.rank else talk.ibcast(np.zeros(1)), WAITING, "all")

    with pytest.raises(AssertionError, match="where another rank called"):
        trainers(body)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_exception_in_a_thread_ends_all_and_is_raised():
    def body(world, talk):
        if talk.rank == 1:
            failure.start(world, "worker 0", lambda: 1 / 0).join()
        wait(talk.ibarrier(), WAITING, "the others")

    with pytest.raises(ZeroDivisionError):
        trainers(body)


def test_a_hang_ends_at_the_time_limit():
    def body(world, talk):
        if talk.rank == 0:
            wait(talk.ibarrier(), WaitOptions(time_limit_seconds=100), "the others")

    began = time.monotonic()
    with pytest.raises(TimeLimitError):
        trainers(body, timeout=0.3)
    assert time.monotonic() - began < 50  # the body would wait for 100


def test_patience_ends_naming_whom_it_waited_for():
    def body(world, talk):
        if talk.rank == 0:
            wait(talk.ibarrier(), WaitOptions(time_limit_seconds=0.1), "trainer 1")

    with pytest.raises(PeerError, match=r"no answer from trainer 1 within 0\.1 s"):
        trainers(body)


def test_the_test_process_never_enters_mpi():
    from mpi4py import MPI

    assert not MPI.Is_initialized()


def open_files():
    """What this process has open, and how often, once what nobody can reach is gone."""
    gc.collect()
    found = Counter()
    for place in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the one that lists them
            found[str(place.readlink())] += 1
    return found


def test_a_job_leaves_no_file_open(tmp_path, small_data):
    """Neither of the rows and replicas that its ranks have mapped, nor of what a host's trainers share."""
    before, two = open_files(), ("topology.trainers=2", "topology.embedding_ps=2")
    train_over_threads(tmp_path, small_data, *two, "sync.algorithm=ma", "data.batch_size=600")
    assert open_files() - before == Counter()
