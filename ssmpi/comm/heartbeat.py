"""Names a rank that is frozen: stopped, swapping, waiting for a dead file system, or on a host that is gone.

The ranks form a ring; each tells the next one every second that it lives, so that the cost of a rank does not depend on
how many there are. A waiting peer would also notice, but much later, and often name a third one that waits itself.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from mpi4py import MPI

from ssmpi.comm.failure import Place
from ssmpi.core.errors import LOST

BEAT_SECONDS = 1.0
LIVING, LEAVING = 1, 2  # tags of the two messages; both say on which host their sender is
HOST_BYTES = 64
FAREWELL_SECONDS = 10.0


class Heartbeat:
    """A thread that beats for this rank and listens to the rank before it, which ``name_of(rank)`` names. ``comm`` is used
    for nothing else. All ranks have one, from when they are ready, and stop it together.

    Silence counts from the first beat, and in time during which this rank was awake itself: a job that is suspended as a
    whole and continued finds nobody frozen.
    """

    def __init__(self, comm: Any, place: Place, name_of: Callable[[int], str], limit_seconds: float) -> None:
        self._comm, self._place, self._name_of = comm, place, name_of
        self._limit, self._beat = limit_seconds, min(BEAT_SECONDS, limit_seconds / 5)
        self._next, self._before = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
        self._word = np.frombuffer(place.host.encode()[:HOST_BYTES].ljust(HOST_BYTES), np.uint8).copy()
        self._host = ""  # of the rank before, once it has beaten
        self._sending: Any = None
        self._left = False  # whether the rank before has taken leave
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)
        if comm.size > 1:
            self._thread.start()

    def stop(self) -> None:
        """Take leave of the ring: all ranks do so at the same time. Returns when no message is under way any more."""
        if not self._thread.is_alive():
            return
        self._ending.set()
        self._thread.join()
        requests = [self._sending, self._comm.Isend(self._word, self._next, LEAVING)]
        deadline = time.monotonic() + FAREWELL_SECONDS
        while time.monotonic() < deadline and not (self._left and all(r.Test() for r in requests)):
            self._hear()
            time.sleep(0.001)

    def _run(self) -> None:
        silent, awake = 0.0, time.monotonic()
        self._sending = self._comm.Isend(self._word, self._next, LIVING)  # at once: who has never beaten is not missed
        while not self._ending.wait(self._beat):
            now = time.monotonic()
            silent += min(now - awake, 2 * self._beat)
            awake = now
            if self._sending.Test():
                self._sending = self._comm.Isend(self._word, self._next, LIVING)
            if self._hear() or self._left or not self._host:
                silent = 0.0
            if silent > self._limit:
                self._place.abort(self._accusation(), LOST)

    def _hear(self) -> bool:
        """Take what the rank before this one has said; whether it has said anything."""
        status, word, heard = MPI.Status(), np.empty(HOST_BYTES, np.uint8), False
        while self._comm.Iprobe(self._before, MPI.ANY_TAG, status):
            self._comm.Recv(word, self._before, status.Get_tag())
            self._host, heard = word.tobytes().decode(errors="replace").strip(), True
            self._left = self._left or status.Get_tag() == LEAVING
        return heard

    def _accusation(self) -> str:
        rank = self._before
        return (
            f"error: {self._name_of(rank)} (rank {rank}, host {self._host}) has given no sign of life for "
            f"{self._limit:g} s: it is frozen (stopped, swapping, waiting for a file system), or its host or network is "
            "gone; the job ends here. Look at that host and start again; raise waiting.frozen_seconds if it was only slow"
        )
