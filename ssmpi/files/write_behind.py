"""Writes records on a background thread: a disk that hangs does not block whoever has something to record."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

WAIT_SECONDS = 0.1  # a healthy disk is faster, so that the record is there when the caller continues


class WriteBehind:
    """Runs writes in order on a daemon thread named ``name``.

    ``do`` waits for its write, but at most WAIT_SECONDS, and not at all while an earlier one is late. The next call
    raises what a write raised.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._changed = threading.Condition()
        self._waiting: deque[Callable[[], object]] = deque()
        self._thread: threading.Thread | None = None
        self._busy = False
        self._error: BaseException | None = None

    def do(self, body: Callable[[], object]) -> None:
        """Run ``body`` after all earlier ones. Any thread may call it."""
        with self._changed:
            late = self._busy or bool(self._waiting)
            self._waiting.append(body)
            self._changed.notify_all()
            if not self._thread:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()
        if not late:
            self.settle(WAIT_SECONDS)

    def settle(self, seconds: float | None = None) -> bool:
        """Wait until everything is written, at most ``seconds`` if given; False if it is not."""
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
