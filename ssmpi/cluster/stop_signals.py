"""Signals that reach ``ssmpi launch`` while its ranks run."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from subprocess import Popen
from types import FrameType

from ssmpi.runtime.mpi import signals
from ssmpi.runtime.mpi.failure import say

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM)
WARNINGS = (signal.SIGUSR1, signal.SIGALRM)  # of the time limit: the scheduler's, and our own
POLL_SECONDS = 0.1
SAME_SECONDS = 1.0  # a repeat this soon is the same request by another route: terminal and parent, scancel and srun
LIMIT_SECONDS = 5.0  # tolerated difference between SLURM's clock and a host's
REPEAT_SECONDS = 1.0
STARTING_SECONDS = 60.0  # until a launcher has begun all ranks, at most: it passes signals on to those that it has
OTHER_SECONDS = 30.0  # SLURM's default KillWait: a scheduler that escalates has sent all its signals by then


class StopSignals:
    """Passes requests to stop on to a job.

    The first of ``STOP_SIGNALS`` stops the run: the ranks get SIGUSR1, finish their step, save and exit. One stop often
    arrives as several signals: schedulers escalate (SLURM: USR1, then TERM), Ctrl-C reaches every process of a
    terminal, and parents forward signals. So a second signal ends the job without waiting for the checkpoint only if it
    must be intentional: SIGINT or SIGTERM, more than ``SAME_SECONDS`` after the first signal of the same kind, or more
    than ``OTHER_SECONDS`` after the stop began with another one. SIGHUP, SIGUSR1 and SIGUSR2 never end a job that is
    saving: closing a terminal or requesting a checkpoint must not lose one. Nor does SLURM's SIGTERM at the time limit:
    if the checkpoint is complete before SIGKILL, it is used and the run is requeued.
    """

    def __init__(self, time_limit: float | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        """``time_limit`` is when the scheduler ends the job, in seconds of ``clock``; None if unknown."""
        self._clock, self._time_limit = clock, time_limit
        self._job: Popen[bytes] | None = None  # none between two starts
        self._first: dict[int, float] = {}  # when each signal came first
        self._start = self._asked = 0.0  # when the job started, and when it was last told to stop
        self.begun = self._limited = False  # whether a job was told to stop; whether the scheduler's limit was reached
        self.ended = False  # whether a second signal has ended the job

    @property
    def received(self) -> set[int]:
        """All signals that came."""
        return set(self._first)

    @property
    def cancelled(self) -> bool:
        """Whether the run should end and not be requeued: after a second signal, or SIGTERM (scancel)."""
        return self.ended or (signal.SIGTERM in self._first and not self._limited)

    def listen(self, seconds: float | None = None) -> None:
        """Install the handlers, for the rest of this process. Main thread only, before the job starts: a signal in
        between would end this process and leave the job behind. After ``seconds`` the job is told to stop.
        """
        for signum in STOP_SIGNALS:
            signals.handle(signum, self.take)
        if seconds is not None:
            signal.signal(signal.SIGALRM, self.take)
            signal.setitimer(signal.ITIMER_REAL, max(seconds, 1e-3))

    def follow(self, job: Popen[bytes], stopping: Callable[[], None]) -> None:
        """Forward signals to ``job``, including those received already. ``stopping`` is called when the stop begins."""
        self._job, self._stopping, self._start = job, stopping, self._clock()
        if self._first:
            self._stop(min(self._first, key=self._first.__getitem__))

    def repeat(self) -> None:
        """Tell a job that is starting again to stop: ranks that were not there yet did not hear it."""
        now = self._clock()
        starting, due = now - self._start < STARTING_SECONDS, now - self._asked >= REPEAT_SECONDS
        if self._job and self.begun and not self.ended and starting and due:
            self._tell(self._job)

    def _tell(self, job: Popen[bytes]) -> None:
        self._asked = self._clock()
        job.send_signal(signal.SIGUSR1)

    def leave(self) -> None:
        """The job has ended: signals are noted until ``follow``."""
        self._job = None

    def pause(self, seconds: float) -> None:
        """Sleep between two starts, until a signal comes."""
        until = self._clock() + seconds
        while not self._first and self._clock() < until:
            time.sleep(POLL_SECONDS)

    def take(self, signum: int, frame: FrameType | None = None) -> None:
        """Handle one signal."""
        now, name = self._clock(), signal.Signals(signum).name
        before, first = self._first.get(signum), not self._first
        self._first.setdefault(signum, now)
        if not self._job:
            return
        if first or not self.begun:
            self._stop(signum)
            return
        meant = now - min(self._first.values()) > OTHER_SECONDS if before is None else now - before > SAME_SECONDS
        if self._is_limit(signum, now):
            self._limited, meant = True, False
        if signum in ENDING_SIGNALS and meant and self._job.poll() is None:
            self.ended = True
            say(f"second signal ({name}): ending without waiting for the checkpoint")
            self._job.terminate()

    def _is_limit(self, signum: int, now: float) -> bool:
        """Whether this is the scheduler's signal at the time limit, after a warning."""
        warned = signum == signal.SIGTERM and not self._first.keys().isdisjoint(WARNINGS)
        return warned and self._time_limit is not None and now >= self._time_limit - LIMIT_SECONDS

    def _stop(self, signum: int) -> None:
        assert self._job
        if self.begun or self._job.poll() is not None:
            return
        self.begun = True
        self._stopping()
        why = "the time is over" if signum == signal.SIGALRM else signal.Signals(signum).name
        say(f"stopping ({why}): the ranks finish their step and save")
        self._tell(self._job)
