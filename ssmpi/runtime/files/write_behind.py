"""Writes records on a background thread: a disk that hangs does not block whoever has something to record."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

WAIT_SECONDS = 0.1  # a healthy disk is faster, so that the record is there when the caller continues


class WriteBehind:
    """Runs writes in order on a daemon thread named ``name``.

    ``do`` waits for its write, but at most WAIT_SECONDS, and not at all while an earlier one is late. The next call
    raises what a write raised.
    """

    def __init__(self, name: str) -> None:
        self._name, self._starting = name, threading.Lock()
        self._writes: queue.Queue[Callable[[], object]] = queue.Queue()
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def do(self, body: Callable[[], object]) -> None:
        """Run ``body`` after all earlier ones. Any thread may call it."""
        late = bool(self._writes.unfinished_tasks)
        self._writes.put(body)
        with self._starting:
            if not self._thread:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()
        if not late:
            self.settle(WAIT_SECONDS)

    def settle(self, seconds: float | None = None) -> bool:
        """Wait until everything is written, at most ``seconds`` if given; False if it is not."""
        done = self._writes.all_tasks_done  # Queue.join() has no limit
        with done:
            written = done.wait_for(lambda: not self._writes.unfinished_tasks, seconds)
            error, self._error = self._error, None
        if error:
            raise error
        return written

    def _run(self) -> None:
        while True:
            body = self._writes.get()
            try:
                body()
            except BaseException as error:  # raised where the next record is written
                with self._writes.all_tasks_done:
                    self._error = error
            self._writes.task_done()
