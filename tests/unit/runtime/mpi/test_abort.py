"""An abort ends the process in seconds, with its code, whatever the disk, the reader of its messages, MPI or its
threads do.
"""

import ctypes
import os
import signal
import sys
import threading
import time

import pytest

from ssmpi.runtime.errors import STOPPED
from ssmpi.runtime.files import log
from ssmpi.runtime.mpi import failure
from ssmpi.runtime.mpi.failure import HostFlags
from ssmpi.runtime.mpi.world import Job

LIMIT = 20  # seconds until a child counts as one that never ends


class Alone:
    """The face of the communicator of a rank without others; ``end`` is what MPI does when it is told to end
    the job.
    """

    size = rank = 0

    def __init__(self, end):
        self.Abort = end

    def allgather(self, value):
        return [value]


def job(end):
    """A rank that has joined a job, as much of it as ends it."""
    made = Job.__new__(Job)
    made.comm, made.rank = Alone(end), 0

    class Watch:
        flags = HostFlags(Alone(end), [0])

    made._watch = Watch()
    return made


def how_it_ends(body, monkeypatch):
    """Wait status of a process of its own that runs ``body``; fails if it does not end."""
    monkeypatch.setattr(failure, "FATAL_REPORT_SECONDS", 0.2)
    monkeypatch.setattr(failure, "ENDING_SECONDS", 0.4)
    child = os.fork()
    if not child:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)  # pytest's time limit has it here
        body()
        os._exit(77)
    deadline = time.monotonic() + LIMIT
    while time.monotonic() < deadline:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return status
        time.sleep(0.02)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    pytest.fail(f"not ended after {LIMIT} s")


def unread(path):
    """A file that is written to without an end, as on a disk that hangs: a pipe that is full."""
    os.mkfifo(path)
    descriptor = os.open(path, os.O_RDWR | os.O_NONBLOCK)
    try:
        while True:
            os.write(descriptor, bytes(4096))
    except BlockingIOError:
        return descriptor


@pytest.fixture
def log_as_found():
    handlers = log.log.handlers[:]
    yield
    log.log.handlers[:] = handlers


def test_a_job_ends_despite_a_hung_disk_or_a_blocked_reader(tmp_path, monkeypatch, log_as_found):
    kept = [unread(tmp_path / name) for name in ("log", "stderr")]

    def body():
        log.log_to_file(tmp_path / "log", "trainer 0")
        sys.stderr = (tmp_path / "stderr").open("w")
        ours = job(os._exit)
        threading.Thread(target=ours._watch.flags.report_once, args=("error: of another thread",), daemon=True).start()
        ours.abort("error: here", STOPPED)

    assert os.waitstatus_to_exitcode(how_it_ends(body, monkeypatch)) == STOPPED
    for descriptor in kept:
        os.close(descriptor)


def test_an_abort_is_said_and_noted_before_the_job_ends(tmp_path, monkeypatch, log_as_found):
    def body():
        log.log_to_file(tmp_path / "trainer-0.log", "trainer 0")
        sys.stderr = (tmp_path / "stderr").open("w")
        job(os._exit).abort("error: here", 3)

    assert os.waitstatus_to_exitcode(how_it_ends(body, monkeypatch)) == 3
    assert (tmp_path / "stderr").read_text() == "\nerror: here\n"
    assert f"{log.ENDS}error: here" in (tmp_path / "trainer-0.log").read_text()


def test_a_process_that_is_alone_ends_without_a_banner_of_mpi(monkeypatch):
    def body():
        alone = job(lambda code: os._exit(99))
        alone.comm.size = 1
        alone.abort("error: here", 3)

    assert os.waitstatus_to_exitcode(how_it_ends(body, monkeypatch)) == 3


def test_where_mpi_does_not_end_a_job_the_rank_ends_itself(monkeypatch):
    status = how_it_ends(lambda: job(lambda code: time.sleep(60)).abort("error: here", STOPPED), monkeypatch)
    assert os.waitstatus_to_exitcode(status) == STOPPED


def test_a_process_ends_despite_a_thread_that_keeps_the_gil(monkeypatch):
    status = how_it_ends(
        lambda: job(lambda code: ctypes.PyDLL(None).sleep(60)).abort("error: here", STOPPED), monkeypatch
    )
    assert os.waitstatus_to_exitcode(status) == -signal.SIGALRM


def test_a_rank_without_its_launcher_ends_though_the_disk_hangs(tmp_path, monkeypatch, log_as_found):
    """Who is told by the kernel that the launcher is gone notes it in a file, if that can be written."""
    kept = unread(tmp_path / "log")

    def body():
        log.log_to_file(tmp_path / "log", "trainer 0")
        log.log.setLevel("INFO")
        watch = failure.Watch.__new__(failure.Watch)
        ours = job(os._exit)
        reading, writing = os.pipe()
        os.close(writing)
        watch._member, watch.flags, watch._fds = ours, ours._watch.flags, {reading: failure.LAUNCHER}
        watch._run()

    assert os.waitstatus_to_exitcode(how_it_ends(body, monkeypatch)) == failure.LOST
    os.close(kept)
