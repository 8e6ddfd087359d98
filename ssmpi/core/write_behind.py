"""Writes records on a thread of its own, so that a disk that hangs holds up nobody who has something to record."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

PATIENCE = 0.1  # seconds: a disk that answers does so sooner, and then the record is there


class WriteBehind:
    """Runs what is to be written in order, on a daemon thread named ``name``.

    ``do`` waits until it is written, but for PATIENCE at most, and not at all while something earlier is late. An
    exception is raised by the next call.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._changed = threading.Condition()
        self._waiting: deque[Callable[[], object]] = deque()
        self._thread: threading.Thread | None = None
        self._busy = False
        self._error: BaseException | None = None

    def do(self, body: Callable[[], object]) -> None:
        """Run ``body`` after all that came before it. Called on any thread."""
        with self._changed:
            late = self._busy or bool(self._waiting)
            self._waiting.append(body)
            self._changed.notify_all()
            if not self._thread:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()
        if not late:
            self.settle(PATIENCE)

    def settle(self, seconds: float | None = None) -> bool:
        """Wait until all is written, for so long at most if ``seconds`` are given; whether it is."""
        with self._changed:
            done = self._changed.wait_for(lambda: not self._busy and not self._waiting, seconds)
            error, self._error = self._error, None
        if error:
            raise error
        return done

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting)
                self._busy, body = True, self._waiting.popleft()
            try:
                body()
            except BaseException as error:  # raised where the next record is written
                self._error = error
            with self._changed:
                self._busy = False
                self._changed.notify_all()
