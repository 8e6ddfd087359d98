"""How a trainer pauses and stops. All parts of a trainer share one ``Stop``::

RUNNING --pause--> PAUSING --resume--> RUNNING          for a checkpoint; the next part of a pass begins
RUNNING, PAUSING --request, or a signal--> STOPPING     this trainer, or another, was asked to stop
RUNNING, PAUSING, STOPPING --agree--> STOPPED           all trainers know it, at the same point of the run
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from enum import IntEnum


class Phase(IntEnum):
    """The phases of a trainer, in the order in which it may pass them; only ``PAUSING`` goes back to ``RUNNING``."""

    RUNNING = 0
    PAUSING = 1
    STOPPING = 2
    STOPPED = 3


class Stop:
    """The phase of one trainer. ``asked()`` says whether its process got a signal to stop.

    Any thread may read it or raise the phase; only the main thread calls ``resume``.
    """

    def __init__(self, asked: Callable[[], bool] = lambda: False) -> None:
        self._asked = asked
        self._phase, self._changing = Phase.RUNNING, threading.Lock()

    def must_pause(self) -> bool:
        """Whether worker threads must halt between two batches, to pause or to stop."""
        return self._phase is not Phase.RUNNING or self._asked()

    @property
    def stopping(self) -> bool:
        """Whether this trainer was asked to stop, or has learned that another one was."""
        return self._phase >= Phase.STOPPING or self._asked()

    @property
    def stopped(self) -> bool:
        """Whether all trainers have agreed to stop."""
        return self._phase is Phase.STOPPED

    def pause(self) -> None:
        """All trainers must pause."""
        self._raise(Phase.PAUSING)

    def resume(self) -> None:
        """Training starts, or continues after a pause."""
        with self._changing:
            if self._phase is Phase.PAUSING:
                self._phase = Phase.RUNNING

    def request(self) -> None:
        """A trainer, this one or another, was asked to stop."""
        self._raise(Phase.STOPPING)

    def agree(self) -> None:
        """All trainers have agreed to stop."""
        self._raise(Phase.STOPPED)

    def _raise(self, phase: Phase) -> None:
        with self._changing:
            self._phase = max(self._phase, phase)
