"""What ``ssmpi launch`` does about signals while its ranks run."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import Protocol

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM)
SAME_SECONDS = 1.0  # the same signal so soon is one request on two ways: terminal and parent, scancel and srun
OTHER_SECONDS = 30.0  # SLURM's default KillWait: a scheduler that escalates has sent all its signals by then


class Job(Protocol):
    """The launcher's process."""

    def poll(self) -> int | None:
        """Its exit code; None while it runs."""

    def send_signal(self, sig: int) -> None:
        """Send it a signal; nothing happens if it has ended."""

    def terminate(self) -> None:
        """Send it SIGTERM, upon which launchers kill their ranks."""


class StopSignals:
    """Passes requests to stop on to a job.

    The first of ``STOP_SIGNALS`` stops the run: the ranks get SIGUSR1, finish their step, save and exit. One stop often
    comes as several signals: schedulers escalate (SLURM: USR1, then TERM), Ctrl-C reaches every process of a terminal,
    and parents pass on what they got themselves. So a second signal ends the job, without waiting for the checkpoint,
    only where somebody must have meant that: SIGINT or SIGTERM, more than ``SAME_SECONDS`` after the same signal came
    first, or more than ``OTHER_SECONDS`` after the stop began with another one. SIGHUP, SIGUSR1 and SIGUSR2 never end
    a job that is saving: closing a terminal and asking for a checkpoint are no wish to lose one.
    """

    def __init__(self, job: Job, stopping: Callable[[], None], clock: Callable[[], float] = time.monotonic) -> None:
        """``stopping`` is called at the first signal. ``clock`` gives seconds."""
        self._job, self._stopping, self._clock = job, stopping, clock
        self._first: dict[int, float] = {}  # when each signal came first
        self.ended = False  # whether a second signal has ended the job

    @property
    def received(self) -> set[int]:
        """All signals that came."""
        return set(self._first)

    def listen(self) -> None:
        """Install the handlers, for the rest of this process. Main thread only."""
        for signum in STOP_SIGNALS:
            signal.signal(signum, self.take)

    def take(self, signum: int, frame: FrameType | None = None) -> None:
        """Handle one signal."""
        now, name = self._clock(), signal.Signals(signum).name
        if not self._first:
            self._first[signum] = now
            self._stopping()
            say(f"stopping ({name}): the ranks finish their step and save")
            self._job.send_signal(signal.SIGUSR1)
            return
        before = self._first.get(signum)
        self._first.setdefault(signum, now)
        meant = now - min(self._first.values()) > OTHER_SECONDS if before is None else now - before > SAME_SECONDS
        if signum in ENDING_SIGNALS and meant and self._job.poll() is None:
            self.ended = True
            say(f"second signal ({name}): ending without waiting for the checkpoint")
            self._job.terminate()


def say(text: str) -> None:
    """A line on standard error."""
    print(text, file=sys.stderr, flush=True)
