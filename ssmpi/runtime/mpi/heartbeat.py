"""Detects a frozen rank: stopped, swapping, waiting for a dead file system, or on a host that is gone.

The ranks form a ring; each sends the next one a heartbeat every second, so that the cost per rank does not depend on
their number. A waiting peer would also notice, but much later, and often blame a rank that only waits itself.
``waiting.frozen_seconds`` limits the silence of a rank.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

import numpy as np
from mpi4py import MPI

from ssmpi.runtime.errors import LOST
from ssmpi.runtime.host.mpi_environment import START_LIMIT
from ssmpi.runtime.mpi import starting
from ssmpi.runtime.mpi.failure import JobMember
from ssmpi.runtime.protocols import MPIRequest

BEAT_SECONDS = 1.0
STARTING, LIVING, LEAVING = 7001, 7002, 7003  # tags of the messages; all carry the name of the sender's host
HOST_BYTES = 64
FAREWELL_SECONDS = 10.0  # for the last messages of both neighbours


class Heartbeat:
    """A thread that sends this rank's heartbeats and listens to the previous rank's. In ``comm`` no one else uses its
    tags. Every rank has one, from when it has joined the job, and all stop it together.

    While a rank starts, the limit is that of the start (``starting``); once it and its listener are ready it is that of
    ``be_regular``. Silence counts only while this rank itself was awake: a job that is suspended as a whole and
    continued finds no rank frozen.
    """

    def __init__(self, comm: MPI.Comm, member: JobMember, names: Sequence[str]) -> None:
        self._comm, self._member, self._names = comm, member, names
        self._tag, self._limit, self._interval = STARTING, starting.limit_seconds(), BEAT_SECONDS
        self._regular = False  # whether the previous rank's heartbeats are
        self._next, self._previous = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
        self._payload = np.frombuffer(member.host.encode()[:HOST_BYTES].ljust(HOST_BYTES), np.uint8).copy()
        self._usual = self._limit
        self._host = ""  # of the previous rank, once it has sent a heartbeat
        self._sending: MPIRequest | None = None
        self._left = False  # whether the previous rank has said that it leaves
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)
        if comm.size > 1:
            self._thread.start()

    def be_regular(self, limit_seconds: float) -> None:
        """From now on no thread of this rank is blocked for long, and the previous rank has ``limit_seconds``."""
        self._interval, self._tag = min(BEAT_SECONDS, limit_seconds / 5), LIVING
        self._usual = limit_seconds

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
        self._sending = self._comm.Isend(self._payload, self._next, self._tag)
        while not self._ending.wait(self._interval):
            now = time.monotonic()
            silent += min(now - awake, 2 * self._interval)
            awake = now
            if self._sending.Test():
                self._sending = self._comm.Isend(self._payload, self._next, self._tag)
            if self._receive() or self._left:
                silent = 0.0
            regular = self._regular and self._tag == LIVING
            if silent > (limit := self._usual if regular else starting.shortened(self._limit)):
                setting = "waiting.frozen_seconds" if regular else START_LIMIT
                self._member.abort(self._frozen_message(limit, setting), LOST)

    def _receive(self) -> bool:
        """Take the messages of the previous rank; whether there was any."""
        status, host, heard = MPI.Status(), np.empty(HOST_BYTES, np.uint8), False
        for tag in (LEAVING, LIVING, STARTING):  # the last one first: when it is here, all are
            while self._comm.Iprobe(self._previous, tag, status):
                self._comm.Recv(host, self._previous, tag)
                self._host, heard = host.tobytes().decode(errors="replace").strip(), True
                self._left, self._regular = self._left or tag == LEAVING, self._regular or tag == LIVING
        return heard

    def _frozen_message(self, limit: float, setting: str) -> str:
        rank, host = self._previous, self._host or "unknown"
        return (
            f"error: {self._names[rank]} (rank {rank}, host {host}) has given no sign of life for "
            f"{limit:g} s: it is frozen (stopped, swapping, waiting for a file system), or its host or network "
            "is gone; all ranks end. Look at that host; where 'ssmpi launch' does not start the job again, do so, and "
            f"raise {setting} if it was only slow"
        )
