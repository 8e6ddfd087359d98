"""How a rank waits. MPI libraries spin, and a spinning rank steals a core from training: here every wait is a test
with a growing sleep, and a timeout whose message names the peer.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from ssmpi.runtime.errors import PeerError
from ssmpi.runtime.protocols import MPIRequest
from ssmpi.runtime.settings import SECONDS, positive


@dataclass(frozen=True)
class WaitOptions:
    """The ``[waiting]`` section: how long ranks wait for each other."""

    REMOVED: ClassVar = {"spins": (0, ""), "longest_sleep_us": (500.0, "")}

    time_limit_seconds: float = 300.0
    """Seconds that any answer may take."""
    frozen_seconds: float = 120.0
    """Seconds without a heartbeat after which a rank counts as frozen."""

    def __post_init__(self) -> None:
        positive("time_limit_seconds", self.time_limit_seconds, SECONDS)
        positive("frozen_seconds", self.frozen_seconds, SECONDS)


SETTING = "waiting.time_limit_seconds"  # where most limits come from
# Seconds to which sleeps between tests grow: for a message; in the main thread that supervises worker threads. After
# that they are a twentieth of the wait so far: an idle server need not poll 2,000 times a second.
MESSAGE, SUPERVISOR = 500e-6, 2e-3
TOLERANCE, LONGEST_SLEEP = 0.05, 10e-3  # after a second a wait may end 10 ms late: a test costs tens of microseconds


class Backoff:
    """One wait in progress: call ``nap`` between tests, ``reset`` after something happened. Sleeps grow to ``usual``
    seconds; in a long wait to ``longest``.
    """

    def __init__(self, usual: float = MESSAGE, longest: float = LONGEST_SLEEP) -> None:
        self._usual, self._longest = usual, longest
        self.reset()

    def reset(self) -> None:
        """Start again with short sleeps."""
        self._sleep, self._slept = 10e-6, 0.0

    def nap(self) -> None:
        """Yield the core, a little longer each time."""
        time.sleep(self._sleep)
        self._slept += self._sleep
        longest = max(self._usual, min(self._slept * TOLERANCE, self._longest))
        self._sleep = min(self._sleep * 1.5, longest)


def wait(request: MPIRequest, waiting: WaitOptions, whom: str, setting: str = SETTING) -> None:
    """Wait until ``request`` is complete; PeerError after the time limit, naming ``whom``."""
    wait_until(request.Test, waiting, whom, setting)


def wait_all(requests: Sequence[MPIRequest], waiting: WaitOptions, whom: str, setting: str = SETTING) -> None:
    """Wait until all ``requests`` are complete."""
    for request in requests:
        wait_until(request.Test, waiting, whom, setting)


def wait_until(done: Callable[[], object], waiting: WaitOptions, whom: str, setting: str = SETTING) -> None:
    """Wait until ``done()`` is true; PeerError after the time limit, naming ``whom`` and the setting of the limit."""
    if done():
        return
    pause = Backoff()
    deadline = time.monotonic() + waiting.time_limit_seconds
    while not done():
        if time.monotonic() > deadline:
            raise late(waiting, whom, setting)
        pause.nap()


def late(waiting: WaitOptions, whom: str, setting: str = SETTING) -> PeerError:
    """What to raise where ``whom`` has not answered within the time limit."""
    return PeerError(
        f"no answer from {whom} within {waiting.time_limit_seconds:g} s; look at that rank's log, "
        f"or raise {setting} if it is only slow"
    )
