"""The loop of a server: it answers the next message from anybody until every client has said goodbye.

Servers never leave on their own, so a trainer that is late or has less data than the others cannot cause a hang.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ssmpi.runtime.mpi.inbox import Inbox
from ssmpi.runtime.mpi.waiting import Backoff, WaitOptions, wait
from ssmpi.runtime.protocols import MPIRequest

if TYPE_CHECKING:
    from ssmpi.runtime.mpi.messages import Conversation

THREADS = 1000  # a request's tag is its kind times this plus the asking thread's number, which tags the reply
GOODBYE = 30_000
LONGEST_NAP = 0.05  # seconds; after a second without messages, as where clients work on mapped memory

Handler = Callable[[int, int, np.ndarray], None]


def request_tag(kind: int, thread: int) -> int:
    """The tag of a thread's request of a kind; a server takes it apart by ``divmod(tag, THREADS)``."""
    return kind * THREADS + thread


class Service:
    """Answers the messages of one conversation. ``handler(source, tag, payload)`` gets uint8 payloads.

    A payload is valid until the handler returns. Replies go through ``reply``, which keeps their buffers alive.
    """

    def __init__(self, conversation: Conversation) -> None:
        self._conversation = conversation
        self._inbox = Inbox()
        self._in_flight: list[tuple[MPIRequest, np.ndarray]] = []
        self._spare: list[np.ndarray] = []

    @property
    def rank(self) -> int:
        """The server's own in the conversation."""
        return self._conversation.rank

    @property
    def size(self) -> int:
        """Ranks of the conversation: any of them may ask."""
        return self._conversation.size

    def serve(self, clients: int, handler: Handler) -> None:
        """Serve until ``clients`` clients have said goodbye and every reply has been sent."""
        pause = Backoff(longest=LONGEST_NAP)
        while clients:
            message = self._conversation.next_message(self._inbox)
            if message is None:
                pause.nap()
                continue
            pause.reset()
            if message[1] == GOODBYE:
                clients -= 1
            else:
                handler(*message)
        while self._in_flight:
            self._reclaim()
            pause.nap()

    def answer_pending(self, handler: Handler) -> bool:
        """Answer the messages that have arrived; whether there was any."""
        busy = False
        while (message := self._conversation.next_message(self._inbox)) is not None:
            handler(*message)
            busy = True
        return busy

    def buffer(self, size: int) -> np.ndarray:
        """A uint8 buffer of ``size`` bytes to fill and hand to ``reply``."""
        self._reclaim()
        for i, spare in enumerate(self._spare):
            if spare.size >= size:
                return self._spare.pop(i)[:size]
        return np.empty(1 << max(12, (size - 1).bit_length()), np.uint8)[:size]

    def reply(self, dest: int, tag: int, buffer: np.ndarray) -> None:
        """Start sending a buffer that ``buffer`` gave."""
        self._in_flight.append((self._conversation.isend(buffer, dest, tag), buffer))

    def _reclaim(self) -> None:
        still = []
        for request, buffer in self._in_flight:
            if not request.Test():
                still.append((request, buffer))
            elif len(self._spare) < 64:
                self._spare.append(buffer if buffer.base is None else buffer.base)
        self._in_flight = still


def say_goodbye(conversation: Conversation, servers: Sequence[int], waiting: WaitOptions) -> None:
    """Tell each server that this client sends no more requests."""
    for server in servers:
        request = conversation.isend(np.empty(0, np.uint8), server, GOODBYE)
        wait(request, waiting, conversation.names[server])
