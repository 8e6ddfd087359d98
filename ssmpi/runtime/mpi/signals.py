"""Ctrl-C, SIGTERM, SIGUSR1 and SIGUSR2 as a request to stop, and SIGALRM where the time of a job is limited. The
handler only notes it; trainers pass it on. SIGQUIT prints the stacks of all threads, and the rank goes on.

``listen`` is called before anything slow is imported, so that a signal before, during or after training does the same.
"""

from __future__ import annotations

import faulthandler
import math
import os
import select
import signal
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

STOP_SIGNALS = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM, signal.SIGINT)
AGAIN_SECONDS = (
    1.0  # a Ctrl-C later than this ends the process at once; an earlier one is the same key press, delivered twice
)

TIME_USED = 0.99  # share of the time of a job after which all must be saved

_limit = {"end": math.inf}  # when that is, in seconds of ``time.monotonic``
_first: dict[int, float] = {}  # when each signal first came. No locks: a handler may interrupt any code


_woken = select.poll()  # a signal writes to a pipe at once, its handler runs when the main thread leaves C code


def listen() -> None:
    """Install the handlers. Main thread only."""
    faulthandler.register(signal.SIGQUIT)  # to standard error, until ``files.log`` has the rank's own file
    reading, writing = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    _woken.register(reading, select.POLLIN)
    for signum in STOP_SIGNALS:
        handle(signum, _note)


def handle(signum: int, handler: Callable[[int, FrameType | None], Any]) -> Any:
    """Install a handler and return the one before. A signal that whoever started this process ignores, as ``nohup``
    does, stays ignored.
    """
    before = signal.getsignal(signum)
    return before if before == signal.SIG_IGN else signal.signal(signum, handler)


def stop_within(seconds: float, save_seconds: float) -> None:
    """Request a stop in time for a save of ``save_seconds`` to end within ``seconds``. Main thread only."""
    _limit["end"] = time.monotonic() + seconds
    signal.signal(signal.SIGALRM, _note)
    expect_save(save_seconds)


def expect_save(seconds: float) -> None:
    """A save takes so many seconds: where the time is limited, the stop is to be that much earlier."""
    if _limit["end"] < math.inf:
        signal.setitimer(signal.ITIMER_REAL, max(_limit["end"] - seconds - time.monotonic(), 1e-3))


def out_of_time() -> bool:
    """Whether the stop was requested because the time is over."""
    return signal.SIGALRM in _first


def ignore_stops() -> None:
    """From now on a request to stop means nothing; Python's exit would make it deadly again. Main thread only."""
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    signal.setitimer(signal.ITIMER_REAL, 0)


def stop_requested_at_start() -> bool:
    """As ``stop_requested``, also while the main thread waits in the MPI library, where no handler runs."""
    return stop_requested() or bool(_woken.poll(0))


def stop_requested() -> bool:
    """Whether this rank got one of the signals."""
    return bool(_first)


def sigterm_received(within_seconds: float) -> bool:
    """Whether SIGTERM came this recently: a launcher sends it before it kills a job."""
    return time.monotonic() - _first.get(signal.SIGTERM, -1e9) < within_seconds


def _note(signum: int, frame: FrameType | None) -> None:
    first = _first.setdefault(signum, time.monotonic())
    if signum == signal.SIGINT and time.monotonic() - first > AGAIN_SECONDS:
        signal.signal(signum, signal.SIG_DFL)
        os.kill(os.getpid(), signum)
