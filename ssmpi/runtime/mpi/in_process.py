"""Conversations within one process, for tests and for benchmarks with a timing of their own: the same methods as
``messages.Conversation``, and as unhelpful as MPI may be. A send is complete only when its message was received, and is
copied only then, so that a buffer which is reused too early shows. Messages of one thread stay in order, those of
different ranks or threads are taken in any order.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np

from ssmpi.runtime.mpi.inbox import Inbox
from ssmpi.runtime.topology import Directory
from ssmpi.runtime.traffic import Link, Meter

T = TypeVar("T")


class InProcessJob(Protocol):
    """What all ranks share."""

    lock: threading.RLock

    def check(self) -> None:
        """Called while a rank waits; raises if the job is over."""


class AnsweringJob:
    """All ranks are of one thread. Whenever one sends or waits, ``answer`` lets the servers answer what was sent to
    them: a client that waits for them needs no other thread.
    """

    def __init__(self, answer: Callable[[], object] | None = None) -> None:
        self.lock, self.answer = threading.RLock(), answer

    def check(self) -> None:
        """Let the servers answer, unless they are answering."""
        answer, self.answer = self.answer, None
        if answer:
            answer()
            self.answer = answer


class InProcessChannel:
    """One conversation's messages sent and not received, receives posted and not answered, and collectives."""

    def __init__(self, job: InProcessJob, directory: Directory) -> None:
        self.job, self.directory = job, directory
        self.sent: list[list[Envelope]] = [[] for _ in directory.members]
        self.awaited: list[list[Envelope]] = [[] for _ in directory.members]
        self.collectives: list[tuple[str, dict[int, Any], InProcessRequest]] = []
        self.chance = random.Random(0)


class InProcessRequest:
    """The interface of an MPI request."""

    def __init__(self, job: InProcessJob) -> None:
        self.job, self.done = job, False

    def Test(self) -> bool:  # noqa: N802 - mpi4py's name
        """Whether it is complete."""
        if not self.done:
            self.job.check()
        return self.done


@dataclass
class Envelope:
    """A send or a receive that waits for its counterpart."""

    peer: int
    tag: int
    array: np.ndarray
    request: InProcessRequest
    thread: int


class InProcessArrived:
    """As ``runtime.protocols.Arrival``; copied when it is received."""

    def __init__(self, envelope: Envelope) -> None:
        self._envelope, self.source, self.tag, self.size = envelope, envelope.peer, envelope.tag, envelope.array.size

    def receive(self, array: np.ndarray) -> InProcessRequest:
        """As ``Arrival``."""
        array.view(np.uint8).reshape(-1)[: self.size] = self._envelope.array
        self._envelope.request.done = True
        return self._envelope.request


class InProcessConversation:
    """One rank's end of a channel."""

    def __init__(self, channel: InProcessChannel, rank: int, meter: Meter) -> None:
        self._channel, self._job, self.meter = channel, channel.job, meter
        self.directory, self.names = channel.directory, channel.directory.names
        self.rank, self.size = rank, len(channel.directory.members)
        self._collectives = 0

    def isend(self, array: np.ndarray, dest: int, tag: int, link: Link | None = None) -> InProcessRequest:
        """Start sending an array."""
        self.meter.sent(array.nbytes, link)
        return self._meet(array, (dest, self.rank, tag), self._channel.awaited, self._channel.sent)

    def irecv(self, array: np.ndarray, source: int, tag: int, link: Link | None = None) -> InProcessRequest:
        """Start receiving into an array, which the message will fill."""
        self.meter.received(array.nbytes, link)
        return self.irecv_some(array, source, tag)

    def irecv_some(self, room: np.ndarray, source: int, tag: int) -> InProcessRequest:
        """Start receiving a message that may be shorter than its buffer."""
        return self._meet(room, (self.rank, source, tag), self._channel.sent, self._channel.awaited)

    def _meet(
        self,
        array: np.ndarray,
        address: tuple[int, int, int],
        others: Sequence[list[Envelope]],
        ours: Sequence[list[Envelope]],
    ) -> InProcessRequest:
        """Match the first counterpart of the same source and tag at the destination, or queue up for one."""
        self._job.check()
        dest, source, tag = address
        request, content = InProcessRequest(self._job), array.view(np.uint8).reshape(-1)
        mine = Envelope(source, tag, content, request, threading.get_ident())
        with self._job.lock:
            other = next((o for o in others[dest] if (o.peer, o.tag) == (source, tag)), None)
            if other is None:
                ours[dest].append(mine)
                return mine.request
            others[dest][:] = [o for o in others[dest] if o is not other]
            send, receive = (other, mine) if others is self._channel.sent else (mine, other)
            assert send.array.size <= receive.array.size, "message longer than the buffer to receive it"
            receive.array[: send.array.size] = send.array
            mine.request.done = other.request.done = True
        return mine.request

    def next_arrival(self) -> InProcessArrived | None:
        """A message from any rank, for the caller to receive; or None."""
        self._job.check()
        with self._job.lock:
            waiting = self._channel.sent[self.rank]
            if not waiting:
                return None
            sender = self._channel.chance.choice(sorted({(e.peer, e.thread) for e in waiting}))
            envelope = next(e for e in waiting if (e.peer, e.thread) == sender)
            waiting[:] = [e for e in waiting if e is not envelope]
            return InProcessArrived(envelope)

    def next_message(self, inbox: Inbox) -> tuple[int, int, np.ndarray] | None:
        """Source, tag and uint8 payload (valid until the next call) of a message from any rank, or None."""
        arrived = self.next_arrival()
        if not arrived:
            return None
        payload = inbox.buffer(arrived.size)
        arrived.receive(payload)
        return arrived.source, arrived.tag, payload

    def iallreduce(self, array: np.ndarray) -> InProcessRequest:
        """Start summing an array in place over all ranks, in their order."""

        def add(arrays: dict[int, np.ndarray]) -> None:
            total = np.sum([arrays[rank] for rank in range(self.size)], axis=0, dtype=array.dtype)
            for each in arrays.values():
                each[...] = total

        self.meter.reduced(array.nbytes, self.size)
        return self._collective("allreduce", array, add)

    def ibcast(self, array: np.ndarray) -> InProcessRequest:
        """Start broadcasting the first rank's array."""

        def copy(arrays: dict[int, np.ndarray]) -> None:
            for each in arrays.values():
                each[...] = arrays[0]

        self.meter.spread(array.nbytes, self.rank, self.size)
        return self._collective("bcast", array, copy)

    def ibarrier(self) -> InProcessRequest:
        """Start a barrier over all ranks."""
        return self._collective("barrier", None, lambda _: None)

    def split(self, color: int) -> InProcessConversation:
        """A conversation of the ranks that give the same color, in rank order."""
        colors = self.gather(color)
        ranks = [rank for rank, other in enumerate(colors) if other == color]
        mine = InProcessChannel(self._job, self.directory.subset(ranks)) if self.rank == ranks[0] else None
        shared = self.gather(mine)[ranks[0]]
        assert shared
        return InProcessConversation(shared, ranks.index(self.rank), self.meter)

    def share(self, value: T) -> T:
        """Give every rank the first rank's value."""
        return self.gather(value)[0]

    def gather(self, value: T) -> list[T]:
        """Give every rank the values of all."""
        found: list[T] = []

        def copy(arguments: dict[int, tuple[T, list[T]]]) -> None:
            for _, each in arguments.values():
                each[:] = [arguments[rank][0] for rank in range(self.size)]

        request = self._collective("gather", (value, found), copy)
        while not request.Test():
            time.sleep(1e-4)
        return found

    def _collective(self, kind: str, argument: Any, complete: Callable[[dict[int, Any]], None]) -> InProcessRequest:
        """The next collective of this rank; the last rank to come does the work for all."""
        self._job.check()
        with self._job.lock:
            collectives = self._channel.collectives
            if self._collectives == len(collectives):
                collectives.append((kind, {}, InProcessRequest(self._job)))
            expected, arguments, request = collectives[self._collectives]
            self._collectives += 1
            assert kind == expected, f"{self.names[self.rank]} calls {kind} where another rank called {expected}"
            arguments[self.rank] = argument
            if len(arguments) == self.size:
                complete(arguments)
                request.done = True
                collectives[self._collectives - 1] = (kind, {}, request)  # arrays may go
        return request
