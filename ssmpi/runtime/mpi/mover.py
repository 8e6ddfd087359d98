"""Carries the messages of mailboxes between ranks that share no memory, by MPI, on one thread of each rank: MPI
libraries progress only inside calls, so a large message must not wait until its sender, which computes, calls again.

A message goes from the mailbox of its sender, on the sender's rank, to the one of the same number at its reader. Both
ends' threads use them as if they were one: the sender's is empty again once its message has left, and a message that
arrives before the last one was taken waits.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import numpy as np

from ssmpi.runtime.mpi.mailbox import LATE, find_full, is_full, mark_empty, mark_full
from ssmpi.runtime.mpi.waiting import Backoff

if TYPE_CHECKING:
    from ssmpi.runtime.mpi.mailbox import Mailboxes
    from ssmpi.runtime.protocols import Arrival, MPIRequest

POLLING = 50e-6  # seconds


class Mover:
    """Moves what is posted in ``mailboxes`` for ranks that share no memory with this one, and what arrives from them;
    ``run`` is the body of its thread.
    """

    def __init__(self, mailboxes: Mailboxes) -> None:
        self._mailboxes, self._group = mailboxes, mailboxes.group
        self._outgoing = mailboxes.addresses[mailboxes.outgoing]
        self._full = np.zeros(len(self._outgoing), np.bool_)
        self._leaving: dict[int, tuple[MPIRequest, float]] = {}  # by mailbox, with the time from which it waits
        self._arrived: list[Arrival] = []  # they wait until their mailboxes are empty
        self._coming: dict[int, MPIRequest] = {}
        self._ended = threading.Event()

    def run(self) -> None:
        """Move messages until ``end``; PeerError if one cannot leave."""
        pause = Backoff(POLLING)
        while True:
            ended, moving = self._ended.is_set(), self.move()
            if moving:
                pause.reset()
            elif ended:
                return
            pause.nap()

    def end(self) -> None:
        """No more is posted, here or for this rank: end once the last message has left."""
        self._ended.set()

    def move(self) -> bool:
        """Start and complete what can be; whether a message is on its way, or was."""
        sending, receiving = self._send(), self._receive()
        return sending or receiving

    def _send(self) -> bool:
        """Start sending what was posted; a message that has left makes room for the next one. Whether there was any."""
        find_full(self._outgoing, self._full)
        for place in np.flatnonzero(self._full):
            number = self._mailboxes.outgoing[place]
            if number not in self._leaving:
                message, box = self._mailboxes.message(number), self._mailboxes.boxes[number]
                self._group.meter.traffic.add_group_entries(box.entries_in(message.nbytes))
                self._leaving[number] = self._group.isend(message, box.reader, number), time.monotonic()
        leaving = list(self._leaving.items())
        for number, (request, since) in leaving:
            if request.Test():
                del self._leaving[number]
                mark_empty(self._mailboxes.addresses[number])
            elif time.monotonic() - since > self._mailboxes.waiting.time_limit_seconds:
                raise self._mailboxes.error(number, LATE)
        return bool(leaving)

    def _receive(self) -> bool:
        """Receive what has arrived, each into its mailbox once that is empty. Whether there was any."""
        while found := self._group.next_arrival():
            self._arrived.append(found)
        waiting: list[Arrival] = []
        for arrival in self._arrived:
            number = arrival.tag
            if number in self._coming or is_full(self._mailboxes.addresses[number]):
                waiting.append(arrival)
            else:
                self._coming[number] = arrival.receive(self._mailboxes.room(number, arrival.size))
        self._arrived = waiting
        coming = list(self._coming.items())
        for number, request in coming:
            if request.Test():
                del self._coming[number]
                mark_full(self._mailboxes.addresses[number])
        return bool(coming)
