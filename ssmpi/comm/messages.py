"""One conversation among some ranks: the few MPI calls that ssmpi makes, with arrays in and requests out.

Threads use the array calls; ``share`` and ``gather`` pickle and belong to the main thread before and after training.
Tests put an in-process class with the same face in its place.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from mpi4py import MPI


class Inbox:
    """A receive buffer that grows to the largest message seen."""

    def __init__(self) -> None:
        self._bytes = np.empty(1 << 16, np.uint8)

    def room(self, size: int) -> np.ndarray:
        """The first ``size`` bytes."""
        if size > self._bytes.size:
            self._bytes = np.empty(max(size, 2 * self._bytes.size), np.uint8)
        return self._bytes[:size]


class Conversation:
    """A communicator of its own for one purpose; ``names`` say who its ranks are (``embedding_ps 1``)."""

    def __init__(self, comm: Any, names: Sequence[str]) -> None:
        self._comm, self.names = comm, tuple(names)
        self.rank, self.size = int(comm.rank), int(comm.size)

    def isend(self, array: np.ndarray, dest: int, tag: int) -> Any:
        """Start sending a contiguous array; it must not change until the request is complete."""
        return self._comm.Isend([array.view(np.uint8).reshape(-1), MPI.BYTE], dest, tag)

    def irecv(self, array: np.ndarray, source: int, tag: int) -> Any:
        """Start receiving into a contiguous array."""
        return self._comm.Irecv([array.view(np.uint8).reshape(-1), MPI.BYTE], source, tag)

    def iallreduce(self, array: np.ndarray) -> Any:
        """Start summing an array in place over all ranks."""
        return self._comm.Iallreduce(MPI.IN_PLACE, array)

    def ibcast(self, array: np.ndarray) -> Any:
        """Start giving every rank the first rank's array."""
        return self._comm.Ibcast(array, 0)

    def ibarrier(self) -> Any:
        """Start waiting for every rank to come here."""
        return self._comm.Ibarrier()

    def next_message(self, inbox: Inbox) -> tuple[int, int, np.ndarray] | None:
        """Source, tag and uint8 payload (valid until the next call) of a message from anybody, or None."""
        status = MPI.Status()
        message = self._comm.Improbe(MPI.ANY_SOURCE, MPI.ANY_TAG, status)
        if message is None:
            return None
        payload = inbox.room(status.Get_count(MPI.BYTE))
        message.Recv([payload, MPI.BYTE])
        return status.Get_source(), status.Get_tag(), payload

    def split(self, color: int) -> Conversation:
        """A conversation of the ranks that give the same color, in rank order. Every rank calls, on its main thread."""
        colors = self._comm.allgather(color)
        names = [name for name, other in zip(self.names, colors, strict=False) if other == color]
        return Conversation(self._comm.Split(color, self.rank), names)

    def share(self, value: Any) -> Any:
        """Give every rank the first rank's value."""
        return self._comm.bcast(value)

    def gather(self, value: Any) -> list[Any]:
        """Give every rank the values of all."""
        return list(self._comm.allgather(value))
