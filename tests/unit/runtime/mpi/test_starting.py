"""The watch over the ranks of a host before there are messages."""

import os
import re
import select
import signal
import subprocess
import sys
import time

import pytest
from ranks import PATIENCE

from ssmpi.runtime.errors import LOST, STOPPED, SettingsError
from ssmpi.runtime.host.mpi_environment import START_LIMIT
from ssmpi.runtime.mpi import signals, starting
from ssmpi.runtime.mpi.starting import LocalRank, StartWatch, limit_seconds, local_ranks, message, shortened


@pytest.fixture(params=["mpirun", "a launcher that names no job"])
def as_rank_0(request, monkeypatch):
    """This process is rank 0 of a job; what it starts with these variables is on the same host."""
    monkeypatch.delenv(starting.JOB, raising=False)
    variables = {"PMI_RANK": "1"}
    if request.param == "mpirun":
        monkeypatch.setenv(starting.JOB, "prterun-test@1")
        variables[starting.JOB] = "prterun-test@1"
    else:
        monkeypatch.setattr(os, "getppid", os.getpid)  # as if one launcher had started both
    return variables


def test_a_stopped_rank_of_this_job_is_found(as_rank_0):
    other = subprocess.Popen(["sleep", "60"], env={"PMI_RANK": "2", starting.JOB: "prterun-other@1"})
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], env=as_rank_0)
    try:
        process.send_signal(signal.SIGSTOP)
        deadline = time.monotonic() + PATIENCE
        while LocalRank(1, process.pid, "T") not in (found := local_ranks()):
            assert time.monotonic() < deadline, found
        if starting.JOB in as_rank_0:
            assert other.pid not in {each.process for each in found}
    finally:
        for each in (process, other):
            each.kill()
            each.wait()


def test_the_message_names_who_is_stuck_or_where_to_look():
    text = message([LocalRank(1, 11, "T"), LocalRank(3, 33, "D")], 300.2)
    assert "within 300 s: rank 1 (process 11) is stopped and rank 3 (process 33) is waiting for a disk" in text
    assert START_LIMIT in text
    assert "look at the other hosts" in message([], 300)


@pytest.mark.parametrize("states", ["TT", "TSTSTT"])
def test_a_rank_that_stays_stopped_ends_the_start_long_before_its_limit(monkeypatch, states):
    """It was named after 300 s. One that goes on in between is not stopped."""
    watch, left = StartWatch(), list(states)
    monkeypatch.setattr(starting, "CHECK_SECONDS", 0.01)
    monkeypatch.setattr(starting, "LOOK_SECONDS", 0.0)
    monkeypatch.setattr(starting, "FROZEN_SECONDS", 0.001)
    monkeypatch.setattr(starting, "local_ranks", lambda: [LocalRank(1, 11, left.pop(0))])
    monkeypatch.setattr(starting, "end_job", lambda waited: watch.end())
    watch._run()
    assert not left


@pytest.mark.parametrize(
    ("state", "asked", "code", "says"),
    [
        ("T", False, LOST, "error: host .*: not all ranks have started within 20 s: rank 1 .* is stopped"),
        ("T", True, LOST, "error: host .*: not all ranks have started within 20 s: rank 1 .* is stopped"),
        ("D", True, STOPPED, "host .*: stopped before all ranks had started .*waiting for a disk"),
        ("S", True, STOPPED, "host .*: stopped before all ranks had started: there is nothing to save"),
    ],
    ids=["frozen", "frozen, asked to stop", "disk, asked to stop", "slow, asked to stop"],
)
def test_a_start_ends_as_lost_where_a_rank_is_frozen_else_as_asked(monkeypatch, capsys, state, asked, code, says):
    """And kills the process that is stuck."""
    left, killed = [], []
    here = [LocalRank(0, os.getpid(), "R"), LocalRank(1, 11, state)]
    monkeypatch.setattr(starting, "local_ranks", lambda: here)
    monkeypatch.setattr(starting, "launched_rank", lambda: 0)
    monkeypatch.setattr(starting, "DEFER_SECONDS", 0)
    monkeypatch.setattr(signals, "stop_requested_at_start", lambda: asked)
    monkeypatch.setattr(os, "kill", lambda *what: killed.append(what))
    monkeypatch.setattr(os, "_exit", left.append)
    starting.end_job(20.0)
    assert re.match(says, capsys.readouterr().err)
    assert left == [code]
    assert killed == [(11, signal.SIGKILL)] * (state != "S")


def test_a_request_to_stop_shortens_the_limit(monkeypatch):
    monkeypatch.setattr(signals, "_first", {})
    monkeypatch.setattr(signals, "_woken", select.poll())  # that of this process may know signals of other tests
    assert shortened(300) == 300
    monkeypatch.setattr(signals, "_first", {signal.SIGTERM: time.monotonic()})
    assert (shortened(300), shortened(5)) == (starting.STOP_SECONDS, 5)


@pytest.mark.parametrize("text", ["soon", "0", "-1", "inf", "nan"])
def test_a_limit_that_is_no_time_is_refused(monkeypatch, text):
    monkeypatch.setenv(START_LIMIT, text)
    with pytest.raises(SettingsError, match=f"{START_LIMIT} is '{text}'"):
        limit_seconds()


HIDDEN = """
import ctypes
whole = ctypes.CDLL
ctypes.CDLL = lambda name=None, *more, **how: object() if "/MPI." in str(name) else whole(name, *more, **how)
from ssmpi.runtime.mpi.mpi_start import MPI
assert MPI.Query_thread() == MPI.THREAD_MULTIPLE
print("started")
"""


def test_mpi_starts_where_its_library_shows_no_names():
    """As where it is linked statically."""
    ended = subprocess.run([sys.executable, "-c", HIDDEN], capture_output=True, text=True, timeout=PATIENCE)
    assert ended.stdout.split() == ["started"], ended.stderr
