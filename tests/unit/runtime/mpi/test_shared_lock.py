"""The lock of shared memory: one holder at a time, whoever waits sleeps, and it ends with its holder."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest
from ranks import address_of

from ssmpi.runtime.mpi.shared_lock import SharedLock, leave, take
from ssmpi.runtime.mpi.shared_memory import SharedMemory
from ssmpi.sync.easgd import InPlaceCenter, pull_alone

HOLDER = """
import sys, time
from ssmpi.runtime.mpi.shared_lock import SharedLock
with SharedLock.at(sys.argv[1]):
    print("held", flush=True)
    time.sleep(60)
"""
PATIENCE = 20  # seconds


@pytest.fixture
def address():
    memory = SharedMemory()
    room = memory.allocate(8)
    yield memory.address
    del room


@contextlib.contextmanager
def held_by_another_process(address):
    other = subprocess.Popen([sys.executable, "-c", HOLDER, address.decode()], stdout=subprocess.PIPE, text=True)
    try:
        assert other.stdout.readline() == "held\n"
        yield other
    finally:
        other.kill()
        other.wait()
        other.stdout.close()


def started(body):
    """A thread that runs ``body``, some time into it."""
    thread = threading.Thread(target=body, daemon=True)
    thread.start()
    time.sleep(0.1)
    return thread


def test_threads_with_a_lock_each_take_turns(address):
    mine, other, order = SharedLock.at(address), SharedLock.at(address), []

    def compiled():
        assert take(other.file)
        order.append("other")
        leave(other.file)

    take(-1)  # compiles
    with mine:
        waiting = started(compiled)
        order.append("mine")
    waiting.join(PATIENCE)
    assert order == ["mine", "other"]


def test_who_waits_uses_no_processor_and_not_the_interpreter(address):
    center, replica = np.zeros(8, np.float32), np.ones(8, np.float32)
    mine, spent = SharedLock.at(address), []

    def move():
        began = time.thread_time()
        assert pull_alone(SharedLock.at(address).file, center, replica, 0.25)
        spent.append(time.thread_time() - began)

    pull_alone(-1, center, replica, 0.25)
    with mine:
        waiting = started(move)
        np.testing.assert_array_equal(center, 0)
    waiting.join(PATIENCE)
    assert spent[0] < 0.01
    np.testing.assert_array_equal(center, 0.25)
    np.testing.assert_array_equal(replica, 0.75)


def test_a_holder_that_is_killed_leaves_it_free(address):
    with held_by_another_process(address) as other:
        waiting = started(lambda: SharedLock.at(address).__enter__())
        assert waiting.is_alive()
        other.kill()
        waiting.join(PATIENCE)
        assert not waiting.is_alive()


def test_a_signal_while_waiting_loses_no_round(address, monkeypatch):
    """Compiled code comes back without the lock, as the system call does; the round goes on in the interpreter."""
    mine, lock, came, handled = SharedLock.at(address), SharedLock.at(address), [], threading.Event()
    center, replica = np.zeros(8, np.float32), np.ones(8, np.float32)
    InPlaceCenter.move(SimpleNamespace(alpha=0.0), lock, center, replica)
    before = signal.signal(signal.SIGUSR2, lambda *_: (came.append("handler"), handled.set()))
    main = threading.get_ident()

    def interrupt():
        time.sleep(0.1)
        signal.pthread_kill(main, signal.SIGUSR2)
        handled.wait(60)
        came.append("lock")
        mine.__exit__(None, None, None)

    mine.__enter__()
    other = threading.Thread(target=interrupt)
    other.start()
    try:
        InPlaceCenter.move(SimpleNamespace(alpha=0.25), lock, center, replica)
    finally:
        other.join(PATIENCE)
        signal.signal(signal.SIGUSR2, before)
    assert came == ["handler", "lock"], "the handler runs while the round still waits"
    np.testing.assert_array_equal(center, 0.25)
    np.testing.assert_array_equal(replica, 0.75)


def test_a_file_that_is_not_open_is_an_error(address):
    lock, nothing = SharedLock.at(address), np.empty(0, np.float32)
    lock.file = 1 << 20
    with pytest.raises(OSError, match="Bad file descriptor"):
        InPlaceCenter.move(SimpleNamespace(alpha=0.5), lock, nothing, nothing)
    with pytest.raises(OSError, match="No such file"):
        SharedLock.at(address_of(1 << 20))


def test_its_file_is_closed_with_it(address):
    lock = SharedLock.at(address)
    file = lock.file
    os.fstat(file)
    del lock
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(file)
