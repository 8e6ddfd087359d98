"""One conversation among some ranks: the few MPI calls that ssmpi makes, with arrays in and requests out.

Threads use the array calls; ``share`` and ``gather`` pickle and belong to the main thread before and after training.
``in_process`` has the same methods without MPI, for tests and benchmarks in lockstep.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np
from mpi4py import MPI

from ssmpi.runtime.mpi.inbox import Inbox
from ssmpi.runtime.protocols import MPIRequest
from ssmpi.runtime.topology import Directory
from ssmpi.runtime.traffic import Link, Meter

T = TypeVar("T")


class Arrived:
    """As ``runtime.protocols.Arrival``."""

    def __init__(self, message: MPI.Message, status: MPI.Status) -> None:
        self._message, self.source, self.tag = message, status.Get_source(), status.Get_tag()
        self.size = status.Get_count(MPI.BYTE)

    def receive(self, array: np.ndarray) -> MPIRequest:
        """As ``Arrival``."""
        return self._message.Irecv([array.view(np.uint8).reshape(-1), MPI.BYTE])


class Conversation:
    """A communicator of its own for one purpose; ``directory`` says which of its ranks plays which role, and ``names``
    how messages call them (``embedding_ps 1``). ``meter`` counts what it carries.
    """

    def __init__(self, comm: MPI.Comm, directory: Directory, meter: Meter) -> None:
        self._comm, self.directory, self.names, self.meter = comm, directory, directory.names, meter
        self.rank, self.size = comm.rank, comm.size

    def isend(self, array: np.ndarray, dest: int, tag: int, link: Link | None = None) -> MPIRequest:
        """Start sending a contiguous array; it must not change until the request is complete."""
        self.meter.sent(array.nbytes, link)
        return self._comm.Isend([array.view(np.uint8).reshape(-1), MPI.BYTE], dest, tag)

    def irecv(self, array: np.ndarray, source: int, tag: int, link: Link | None = None) -> MPIRequest:
        """Start receiving into a contiguous array, which the message will fill."""
        self.meter.received(array.nbytes, link)
        return self._comm.Irecv([array.view(np.uint8).reshape(-1), MPI.BYTE], source, tag)

    def irecv_some(self, buffer: np.ndarray, source: int, tag: int) -> MPIRequest:
        """Start receiving a message that may be shorter than its buffer; the caller counts it once its length is
        known.
        """
        return self._comm.Irecv([buffer.view(np.uint8).reshape(-1), MPI.BYTE], source, tag)

    def iallreduce(self, array: np.ndarray) -> MPIRequest:
        """Start summing an array in place over all ranks."""
        self.meter.reduced(array.nbytes, self.size)
        return self._comm.Iallreduce(MPI.IN_PLACE, array)

    def ibcast(self, array: np.ndarray) -> MPIRequest:
        """Start broadcasting the first rank's array."""
        self.meter.spread(array.nbytes, self.rank, self.size)
        return self._comm.Ibcast(array, 0)

    def ibarrier(self) -> MPIRequest:
        """Start a barrier over all ranks."""
        return self._comm.Ibarrier()

    def next_arrival(self) -> Arrived | None:
        """The next message from any rank, for the caller to receive; or None."""
        status = MPI.Status()
        message = self._comm.Improbe(MPI.ANY_SOURCE, MPI.ANY_TAG, status)
        return Arrived(message, status) if message else None

    def next_message(self, inbox: Inbox) -> tuple[int, int, np.ndarray] | None:
        """Source, tag and uint8 payload (valid until the next call) of the next message from any rank, or None."""
        status = MPI.Status()
        message = self._comm.Improbe(MPI.ANY_SOURCE, MPI.ANY_TAG, status)
        if message is None:
            return None
        payload = inbox.buffer(status.Get_count(MPI.BYTE))
        message.Recv([payload, MPI.BYTE])
        return status.Get_source(), status.Get_tag(), payload

    def split(self, color: int) -> Conversation:
        """A conversation of the ranks that give the same color, in rank order. Every rank calls, on its main thread."""
        colors = self._comm.allgather(color)
        ranks = [rank for rank, other in enumerate(colors) if other == color]
        return Conversation(self._comm.Split(color, self.rank), self.directory.subset(ranks), self.meter)

    def share(self, value: T) -> T:
        """Give every rank the first rank's value."""
        shared: T = self._comm.bcast(value)
        return shared

    def gather(self, value: T) -> list[T]:
        """Give every rank the values of all."""
        return list(self._comm.allgather(value))
