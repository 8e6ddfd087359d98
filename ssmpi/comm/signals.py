"""Ctrl-C, SIGTERM, SIGUSR1 and SIGUSR2 as a wish to stop. A rank only notes the wish; trainers look for it between batches,
save what was learned and leave. Servers never look: they leave when every trainer has said goodbye.

``listen`` is called before anything slow is imported, so that a signal before, during or after training does the same.
"""

from __future__ import annotations

import os
import signal
import time
from types import FrameType

WISHES = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM, signal.SIGINT)
AGAIN_SECONDS = 1.0  # Ctrl-C again after this ends the process at once; before, it is the same one come by two ways

_first: dict[int, float] = {}  # when each signal first came. No locks here: handlers run in the midst of anything


def listen() -> None:
    """From now on these signals are wishes. Main thread only."""
    for signum in WISHES:
        signal.signal(signum, _note)


def stop_asked() -> bool:
    """Whether somebody asked this rank to stop."""
    return bool(_first)


def told_to_end(within_seconds: float) -> bool:
    """Whether SIGTERM came this recently: a launcher that takes a job down sends it before it kills."""
    return time.monotonic() - _first.get(signal.SIGTERM, -1e9) < within_seconds


def _note(signum: int, frame: FrameType | None) -> None:
    first = _first.setdefault(signum, time.monotonic())
    if signum == signal.SIGINT and time.monotonic() - first > AGAIN_SECONDS:
        signal.signal(signum, signal.SIG_DFL)
        os.kill(os.getpid(), signum)
