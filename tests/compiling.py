"""A clock that stands still while numba compiles in this process: on a busy machine the kernels of one run take
minutes, longer than a test may wait for anything else.
"""

import time

from numba.core import event


class Clock(event.Listener):
    """Events come with numba's compiler lock held, so one at a time."""

    def __init__(self):
        self._depth, self._compiled = 0, 0.0

    def on_start(self, event):
        if not self._depth:
            self._began = time.monotonic()
        self._depth += 1

    def on_end(self, event):
        self._depth -= 1
        if not self._depth:
            self._compiled += time.monotonic() - self._began

    def now(self):
        """Seconds without those in which something was compiled."""
        return (self._began if self._depth else time.monotonic()) - self._compiled


CLOCK = Clock()
event.register("numba:compile", CLOCK)
