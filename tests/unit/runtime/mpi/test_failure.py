"""A failure on one thread ends the job with one message that names who, where, why and what to do."""

import errno
import logging
import os
import select
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from ssmpi.runtime import user_code
from ssmpi.runtime.errors import LOST, DataError
from ssmpi.runtime.files.log import RankFile
from ssmpi.runtime.mpi import failure, signals
from ssmpi.runtime.mpi.failure import HostFlags, Watch, exit_code_of, guard, message, start


class Here:
    """A place that remembers with which words it ended the job."""

    who, host, rank = "trainer 1", "h2", 0

    def __init__(self):
        self.words, self.codes, self.ended = [], [], threading.Event()

    def abort(self, text, code=1):
        self.words.append(text)
        self.codes.append(code)
        self.ended.set()


class Neighbours:
    """The face of a communicator of ranks in this process; ``pids`` are what they say that their processes are."""

    def __init__(self, pids):
        self._pids, self._values = pids, {}
        self._meeting = threading.Barrier(len(pids))

    def comm(self, rank):
        neighbours = self

        class Comm:
            size = len(neighbours._pids)

            def allgather(self, value):
                neighbours._values[rank] = (*value[:2], neighbours._pids[rank]) if isinstance(value, tuple) else value
                neighbours._meeting.wait(30)
                everyone = [neighbours._values[r] for r in range(self.size)]
                neighbours._meeting.wait(30)
                return everyone

        Comm.rank = rank
        return Comm()

    def each(self, body):
        """Results of ``body(comm)`` on every rank."""
        results = [None] * len(self._pids)

        def be(rank):
            results[rank] = body(self.comm(rank))

        threads = [threading.Thread(target=be, args=(rank,)) for rank in range(len(results))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        return results


def test_what_goes_well_passes_the_guard():
    place = Here()
    with guard(place, "main"):
        pass
    assert not place.words


def test_what_the_user_can_mend_comes_without_a_traceback():
    place = Here()
    with guard(place, "worker 3"):
        raise DataError("shard 7 is missing; copy it here")
    assert place.words == ["error: trainer 1 (rank 0, host h2, thread worker 3): shard 7 is missing; copy it here"]
    assert place.codes == [2]


def test_what_nobody_expects_comes_with_one():
    place = Here()
    with guard(place, "shadow"):
        raise ZeroDivisionError("by nought")
    assert place.words[0].startswith(
        "error: trainer 1 (rank 0, host h2, thread shadow): ZeroDivisionError: by nought\n"
    )
    assert "Traceback" in place.words[0]
    assert "test_failure.py" in place.words[0]
    assert place.words[0].endswith("please report it with this log")


def test_an_error_in_a_users_own_code_names_the_line():
    """Of the innermost frame there, although numpy raised it."""
    text = "import numpy as np\n\ndef merge_target(reduced):\n    return reduced + np.ones(3)\n"
    place, own = Here(), user_code.module_of(Path("/home/me/ema.py"), text)
    with guard(place, "shadow"):
        own.merge_target(np.ones(2))
    assert place.words[0].startswith(
        "error: trainer 1 (rank 0, host h2, thread shadow): /home/me/ema.py, line 4: ValueError: operands could not"
    )
    assert place.words[0].endswith("this is your own code: correct it, and start again")
    assert place.codes == [2]


@pytest.mark.parametrize(
    ("number", "remedy"),
    [
        (errno.ENOSPC, "make room there"),
        (errno.EACCES, "fix the path or its permissions"),
        (errno.EROFS, "another folder"),
    ],
)
def test_what_the_system_refuses_comes_with_a_remedy(number, remedy):
    text = message(Here(), "main", OSError(number, os.strerror(number), "/data/run"))
    assert "/data/run" in text
    assert remedy in text
    assert "Traceback" not in text


def test_too_little_memory_comes_with_a_remedy():
    assert "more embedding_ps" in message(Here(), "main", MemoryError())
    assert exit_code_of(MemoryError()) == LOST  # a restart may find more of it


@pytest.fixture
def no_threads(monkeypatch):
    """Starting a thread fails, as beyond ``ulimit -u``."""

    def refuse(*words):
        raise RuntimeError(failure.NO_THREAD)

    monkeypatch.setattr(threading, "_start_new_thread", refuse)


def test_too_few_threads_come_with_a_remedy(no_threads):
    place = Here()
    with guard(place, "main"):
        start(place, "worker 0", list)
    assert "ulimit -u" in place.words[0]
    assert "topology.threads" in place.words[0]
    assert "Traceback" not in place.words[0]
    assert place.codes == [2]


def test_a_log_without_a_thread_ends_its_rank(no_threads, tmp_path):
    line = logging.LogRecord("ssmpi", logging.INFO, __file__, 1, "training starts", None, None)
    with pytest.raises(RuntimeError, match=failure.NO_THREAD):
        RankFile(tmp_path / "trainer-0.log").emit(line)


def test_a_job_without_another_thread_says_why_it_ends(no_threads, monkeypatch, capsys):
    timers = []
    monkeypatch.setattr(signal, "setitimer", lambda which, seconds: timers.append(seconds))
    failure.start_exit_watchdog(2)
    assert timers
    assert failure.report_fatal_error(RuntimeError(failure.NO_THREAD)) == 2
    assert "ulimit -u" in capsys.readouterr().err


def test_an_agreed_exit_of_the_main_thread_passes_the_guard():
    place = Here()
    with pytest.raises(SystemExit), guard(place, "main"):
        raise SystemExit(2)
    assert not place.words


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, RuntimeError])
def test_a_thread_never_dies_quietly(error):
    def body():
        raise error

    place = Here()
    start(place, "worker 0", body).join(30)
    assert error.__name__ in place.words[0]


def test_nobody_to_hear_does_not_keep_the_job_from_ending(monkeypatch):
    monkeypatch.setattr("sys.stderr", Path(os.devnull).open())  # noqa: SIM115 - not for writing
    failure.say("error: unheard")


def test_of_many_failures_on_a_host_one_is_told(capsys):
    flags = Neighbours([1, 2, 3]).each(lambda comm: HostFlags(comm, [0, 1, 2]))
    assert [each.report_once(f"error {k}") for k, each in enumerate(flags)] == [True, False, False]
    assert capsys.readouterr().err.split() == ["error", "0"]


def test_threads_of_one_rank_tell_one_failure(capsys):
    (flags,) = Neighbours([1]).each(lambda comm: HostFlags(comm, [0]))
    threads = [threading.Thread(target=flags.report_once, args=("error: told",)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert capsys.readouterr().err.count("told") == 1


def test_ranks_of_a_host_see_who_has_left():
    first, second = Neighbours([1, 2]).each(lambda comm: HostFlags(comm, [0, 1]))
    second.leaving(1)
    assert first.has_left(1)
    assert not first.has_left(0)


@pytest.fixture
def watched():
    """A watch of rank 0 over rank 1, which is a process that sleeps."""
    sleeper = subprocess.Popen(["sleep", "60"])
    places = [Here(), Here()]
    watches = Neighbours([os.getpid(), sleeper.pid]).each(lambda comm: Watch(comm, places[comm.rank]))
    watches[0].names = ["trainer 0", "embedding_ps 0"]
    yield watches[0], places[0], sleeper
    sleeper.kill()
    sleeper.wait()


def test_a_killed_neighbour_is_named(watched):
    _, place, sleeper = watched
    sleeper.kill()
    assert place.ended.wait(30)
    assert "embedding_ps 0 (rank 1, host h2) was killed or crashed" in place.words[0]


def test_a_neighbour_that_was_killed_for_memory_is_named_as_such(watched, monkeypatch):
    watch, place, sleeper = watched
    monkeypatch.setattr(failure, "oom_kills", lambda: watch._oom_kills + 1)
    sleeper.kill()
    assert place.ended.wait(30)
    assert "embedding_ps 0 (rank 1, host h2) was killed by the system, which ran out of memory" in place.words[0]


def kill_and_let_watch_end(sleeper):
    """The watch over it has then said what it has to say."""
    watches = [thread for thread in threading.enumerate() if thread.name == "watch"]
    sleeper.kill()
    deadline = time.monotonic() + 30
    while all(thread.is_alive() for thread in watches):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_neighbour_that_leaves_on_purpose_is_not_missed(watched):
    watch, place, sleeper = watched
    watch.flags.leaving(1)
    kill_and_let_watch_end(sleeper)
    assert not place.words


def test_a_neighbour_that_the_launcher_takes_down_is_not_missed(watched, monkeypatch):
    _, place, sleeper = watched
    monkeypatch.setattr(signals, "_first", {signal.SIGTERM: time.monotonic()})
    kill_and_let_watch_end(sleeper)
    assert not place.words


LAUNCHED = """
import os, sys, time
sys.path[:0] = sys.path_of_tests
from test_failure import Here, Neighbours, Watch
os.environ["PMI_RANK"] = "0"
Neighbours([os.getpid()]).each(lambda comm: Watch(comm, Here()))
print(os.getpid(), flush=True)
time.sleep(60)
""".replace("sys.path_of_tests", repr([str(Path(__file__).parent)]))


def test_a_rank_does_not_outlive_its_launcher():
    """Open MPI's own ways to end one that does take seconds, and sometimes fail."""
    starter = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {LAUNCHED!r}])"
    with subprocess.Popen([sys.executable, "-c", starter], stdout=subprocess.PIPE, text=True) as launcher:
        rank = os.pidfd_open(int(launcher.stdout.readline()))
        launcher.kill()
        poll = select.poll()
        poll.register(rank, select.POLLIN)
        ended = poll.poll(5000)
        if not ended:
            signal.pidfd_send_signal(rank, signal.SIGKILL)
        os.close(rank)
    assert ended


@pytest.mark.parametrize("signum", signals.STOP_SIGNALS)
def test_a_signal_is_a_wish_to_stop(signum, monkeypatch):
    monkeypatch.setattr(signals, "_first", {})
    before = {each: signal.getsignal(each) for each in signals.STOP_SIGNALS}
    try:
        signals.listen()
        assert not signals.stop_requested()
        signal.raise_signal(
            signum
        )  # on this thread: another one would hear of it later, under the handler that was there before
        signal.raise_signal(signum)  # the same one by two ways
        assert signals.stop_requested()
        assert signals.sigterm_received(5) == (signum == signal.SIGTERM)
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


STACKS = """
import signal, sys, threading
from pathlib import Path
from ssmpi.runtime.mpi import signals
from ssmpi.runtime.files import log

def stuck(event):
    event.wait()

signals.listen()
threading.Thread(target=stuck, args=(threading.Event(),), daemon=True).start()
signal.raise_signal(signal.SIGQUIT)  # before there is a log
print("between", file=sys.stderr, flush=True)
log.log_to_file(Path(sys.argv[1]), "trainer 0")
signal.raise_signal(signal.SIGQUIT)
print("goes on")
"""


def test_sigquit_prints_the_stacks_of_all_threads_and_the_rank_goes_on(tmp_path):
    path = tmp_path / "logs" / "trainer-0.log"
    done = subprocess.run([sys.executable, "-c", STACKS, path], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "goes on\n"), done.stderr
    early, _, late = done.stderr.partition("between\n")
    for text in (early, path.read_text()):
        assert text.count("most recent call first") >= 2
        assert " in stuck\n" in text
        assert " in <module>\n" in text
    assert "most recent call first" not in late


LOST_PAGES = """
import mmap, os, sys
from pathlib import Path
from ssmpi.runtime.files import log

log.log_to_file(Path(sys.argv[1]), "embedding_ps 0")
file = os.open(Path(sys.argv[1]).with_name("rows"), os.O_RDWR | os.O_CREAT)
os.ftruncate(file, mmap.PAGESIZE)
rows = mmap.mmap(file, mmap.PAGESIZE)
os.ftruncate(file, 0)  # as if the disk could not read them any more
rows[0]
"""


def test_the_log_of_a_rank_names_the_signal_that_ended_it(tmp_path):
    path = tmp_path / "logs" / "embedding_ps-0.log"
    done = subprocess.run([sys.executable, "-c", LOST_PAGES, path], capture_output=True, text=True)
    assert done.returncode == -signal.SIGBUS
    assert "Fatal Python error: Bus error" in path.read_text()


def test_each_rank_of_a_host_is_watched_by_a_few_others():
    for count in range(1, 40):
        local = list(range(100, 100 + 2 * count, 2))
        watchers = {rank: [w for w in local if rank in failure.watched_ranks(local, w)] for rank in local}
        assert all(len(found) == min(3, count - 1) and rank not in found for rank, found in watchers.items())
