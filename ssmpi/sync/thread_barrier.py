"""A barrier for the worker threads of a trainer, at which one of them works for all."""

from __future__ import annotations

import threading
from collections.abc import Callable


class ThreadBarrier:
    """Worker threads stop at their next step, the last to arrive does the work, then all continue."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._called = False
        self._present = self._expected = 0
        self._held = 0

    def open(self, threads: int) -> None:
        """Expect this many threads."""
        self._expected = threads

    def pause_if(self, due: Callable[[], bool], work: Callable[[], object]) -> None:
        """Call all threads to the barrier if ``due``; if any thread did, wait here until the work is done."""
        with self._condition:
            self._called = due() or self._called
            if not self._called:
                return
            self._present += 1
            held = self._held
            self._hold(work)
            while held == self._held:
                self._condition.wait()

    def leave(self, work: Callable[[], object]) -> None:
        """One thread fewer to expect; if all others are waiting, do the work for them."""
        with self._condition:
            self._expected -= 1
            if self._present:
                self._hold(work)

    def _hold(self, work: Callable[[], object]) -> None:
        if self._present < self._expected:
            return
        work()
        self._held += 1
        self._present, self._called = 0, False
        self._condition.notify_all()
