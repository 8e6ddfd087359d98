"""Which second signals end a job that is saving, by a clock of the test's own."""

import signal
import subprocess
import sys

import pytest

from ssmpi.cluster.stop_signals import OTHER_SECONDS, REPEAT_SECONDS, SAME_SECONDS, STARTING_SECONDS, StopSignals

INT, TERM, HUP, USR1, USR2 = signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2
ALRM = signal.SIGALRM  # of the launch's own time limit
SOON, LATER, LATE = SAME_SECONDS / 2, SAME_SECONDS * 2, OTHER_SECONDS * 2


class Job:
    """What a launcher's process was sent."""

    def __init__(self):
        self.sent, self.code = [], None

    def poll(self):
        return self.code

    def send_signal(self, sig):
        self.sent.append(sig)

    def terminate(self):
        self.sent.append(TERM)


@pytest.mark.parametrize(
    ("signals", "ended"),
    [
        ([(0, INT)], False),
        ([(0, INT), (SOON, INT)], False),
        ([(0, INT), (LATER, INT)], True),
        ([(0, TERM), (LATER, TERM)], True),
        ([(0, USR1), (LATER, TERM)], False),
        ([(0, USR1), (LATER, INT), (SOON, INT)], False),
        ([(0, USR1), (LATER, INT), (LATER, INT)], True),
        ([(0, USR1), (LATE, TERM)], True),
        ([(0, INT), (LATE, TERM)], True),
        ([(0, INT), (LATE, HUP), (LATE, HUP)], False),  # a terminal that is closed
        ([(0, USR1), (LATE, USR1), (LATE, USR2), (LATE, USR2)], False),
    ],
)
def test_only_a_signal_that_is_meant_ends_a_job_that_is_saving(capsys, signals, ended):
    job, now, began = Job(), [100.0], []
    stops = StopSignals(clock=lambda: now[0])
    stops.follow(job, lambda: began.append(1))
    for wait, signum in signals:
        now[0] += wait
        stops.take(signum)
    assert stops.ended == ended
    assert job.sent == [USR1] + [TERM] * ended
    assert began == [1]
    assert stops.received == {signum for _, signum in signals}
    said = capsys.readouterr().err
    assert said.count("stopping (") == 1
    assert said.count("second signal (") == ended


def test_a_signal_after_the_end_ends_nothing():
    job, now = Job(), [0.0]
    stops = StopSignals(clock=lambda: now[0])
    stops.follow(job, lambda: None)
    stops.take(INT)
    job.code, now[0] = 85, LATER
    stops.take(INT)
    assert not stops.ended


@pytest.mark.parametrize(
    ("signals", "cancelled"),
    [
        ([USR1], False),
        ([TERM], True),  # scancel, or a pre-emption, after which SLURM requeues by itself
        ([USR1, TERM], False),  # the time limit and its warning
        ([ALRM, TERM], False),
        ([INT, TERM], True),
    ],
)
@pytest.mark.parametrize("limit", ["reached", "far", "unknown"])
def test_sigterm_at_the_time_limit_is_no_cancellation(signals, cancelled, limit):
    now, job = [1000.0], Job()
    stops = StopSignals({"reached": 1120.0, "far": 9999.0, "unknown": None}[limit], lambda: now[0])
    stops.follow(job, lambda: None)
    for signum in signals:
        stops.take(signum)
        now[0] += 120.0
    assert stops.cancelled == (cancelled or (limit != "reached" and TERM in signals))
    assert stops.ended == (signals[1:] == [TERM] and (limit != "reached" or INT in signals))


def test_a_stop_before_the_job_runs_is_passed_on_once(capsys):
    job, stops = Job(), StopSignals()
    stops.take(INT)
    assert capsys.readouterr().err == ""
    stops.follow(job, lambda: None)
    assert job.sent == [USR1]
    assert capsys.readouterr().err.startswith("stopping (SIGINT)")


def test_ranks_that_were_not_there_yet_are_told_again():
    """While a job starts, once a second; not one that was not told, is ended, or has long been there."""
    job, now = Job(), [100.0]
    stops = StopSignals(clock=lambda: now[0])
    stops.follow(job, lambda: None)
    stops.repeat()
    assert job.sent == []
    stops.take(TERM)
    for _ in range(int(8 * STARTING_SECONDS)):
        now[0] += 0.25
        stops.repeat()
    assert set(job.sent) == {USR1}
    assert len(job.sent) == pytest.approx(STARTING_SECONDS / REPEAT_SECONDS, abs=1)
    stops.follow(job, lambda: None)
    stops.ended = True
    told = len(job.sent)
    now[0] += 5
    stops.repeat()
    assert len(job.sent) == told


def test_a_signal_between_two_starts_ends_the_pause():
    job, stops = Job(), StopSignals()
    stops.follow(job, pytest.fail)
    job.code = -9
    stops.take(TERM)  # before anybody has noticed that it ended
    stops.leave()
    stops.take(INT)
    assert (stops.received, stops.begun, job.sent) == ({TERM, INT}, False, [])
    stops.pause(1e9)


IGNORED = """
import signal
from ssmpi.cluster.stop_signals import StopSignals
from ssmpi.runtime.mpi import signals
for signum in (signal.SIGHUP, signal.SIGINT):
    signal.signal(signum, signal.SIG_IGN)
signals.listen()
StopSignals().listen()
listening = [signum for signum in (*signals.STOP_SIGNALS, signal.SIGHUP) if callable(signal.getsignal(signum))]
print(*sorted(signum.name for signum in listening))
"""


def test_a_signal_that_was_ignored_stays_ignored():
    """As SIGHUP with nohup, and SIGINT in the background of a script."""
    done = subprocess.run([sys.executable, "-c", IGNORED], capture_output=True, text=True)
    assert done.stdout.split() == ["SIGTERM", "SIGUSR1", "SIGUSR2"], done.stderr
