"""Detects a frozen rank: stopped, swapping, waiting for a dead file system, or on a host that is gone.

The ranks form a ring; each sends the next one a heartbeat every second, so that the cost per rank does not depend on
their number. A waiting peer would also notice, but much later, and often blame a rank that only waits itself.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import numpy as np
from mpi4py import MPI

from ssmpi.comm.failure import JobMember
from ssmpi.core.errors import LOST
from ssmpi.core.protocols import MPIRequest

BEAT_SECONDS = 1.0
LIVING, LEAVING = 1, 2  # tags of the two messages; both carry the name of the sender's host
HOST_BYTES = 64
FAREWELL_SECONDS = 10.0  # for the last messages of both neighbours


class Heartbeat:
    """A thread that sends this rank's heartbeats and listens to the previous rank's; ``name_of(rank)`` names ranks.
    ``comm`` is used for nothing else. Every rank has one, from when it is ready, and all stop it together.

    Silence counts from the first heartbeat, and only while this rank itself was awake: a job that is suspended as a
    whole and continued finds no rank frozen.
    """

    def __init__(self, comm: MPI.Comm, member: JobMember, name_of: Callable[[int], str], limit_seconds: float) -> None:
        self._comm, self._member, self._name_of = comm, member, name_of
        self._limit, self._interval = limit_seconds, min(BEAT_SECONDS, limit_seconds / 5)
        self._next, self._previous = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
        self._payload = np.frombuffer(member.host.encode()[:HOST_BYTES].ljust(HOST_BYTES), np.uint8).copy()
        self._host = ""  # of the previous rank, once it has sent a heartbeat
        self._sending: MPIRequest | None = None
        self._left = False  # whether the previous rank has said that it leaves
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)
        if comm.size > 1:
            self._thread.start()

    def stop(self) -> None:
        """Leave the ring; all ranks do so at the same time. Returns when no message is in flight."""
        if not self._thread.is_alive():
            return
        self._ending.set()
        self._thread.join()
        assert self._sending
        requests: list[MPIRequest] = [self._sending, self._comm.Isend(self._payload, self._next, LEAVING)]
        deadline = time.monotonic() + FAREWELL_SECONDS
        while time.monotonic() < deadline and not (self._left and all(r.Test() for r in requests)):
            self._receive()
            time.sleep(0.001)

    def _run(self) -> None:
        silent, awake = 0.0, time.monotonic()
        self._sending = self._comm.Isend(self._payload, self._next, LIVING)  # at once: silence counts only after it
        while not self._ending.wait(self._interval):
            now = time.monotonic()
            silent += min(now - awake, 2 * self._interval)
            awake = now
            if self._sending.Test():
                self._sending = self._comm.Isend(self._payload, self._next, LIVING)
            if self._receive() or self._left or not self._host:
                silent = 0.0
            if silent > self._limit:
                self._member.abort(self._frozen_message(), LOST)

    def _receive(self) -> bool:
        """Take the messages of the previous rank; whether there was any."""
        status, host, heard = MPI.Status(), np.empty(HOST_BYTES, np.uint8), False
        while self._comm.Iprobe(self._previous, MPI.ANY_TAG, status):
            self._comm.Recv(host, self._previous, status.Get_tag())
            self._host, heard = host.tobytes().decode(errors="replace").strip(), True
            self._left = self._left or status.Get_tag() == LEAVING
        return heard

    def _frozen_message(self) -> str:
        rank = self._previous
        return (
            f"error: {self._name_of(rank)} (rank {rank}, host {self._host}) has given no sign of life for "
            f"{self._limit:g} s: it is frozen (stopped, swapping, waiting for a file system), or its host or network "
            "is gone; all ranks end. Look at that host; where 'ssmpi launch' does not start the job again, do so, and "
            "raise waiting.frozen_seconds if it was only slow"
        )
