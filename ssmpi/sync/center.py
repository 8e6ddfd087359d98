"""A center on sync PSs, and both ends of the conversation about it. Each sync PS has a shard of the vector, so that all
of them share every round. A trainer exchanges with the center only and waits for no other trainer; several worker
threads may do so concurrently, each with its own exchange.

If the center can be moved in place, it lies in memory that trainers on the same host map; they and the sync PS, which
serves trainers of other hosts, update it under that memory's lock.
"""

from __future__ import annotations

import contextlib
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Protocol

import numpy as np

from ssmpi import compress
from ssmpi.runtime.mpi.service import THREADS, Service, request_tag, say_goodbye
from ssmpi.runtime.mpi.shared_lock import SharedLock
from ssmpi.runtime.mpi.shared_memory import Memory, placed
from ssmpi.runtime.mpi.waiting import wait, wait_all
from ssmpi.runtime.topology import Role
from ssmpi.sync.base import SYNC_PS, Exchange, Synchronizer
from ssmpi.sync.options import RoundOptions
from ssmpi.sync.round_context import RoundContext

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

    from ssmpi.runtime.mpi.rank_memory import ArrayMemory
    from ssmpi.runtime.topology import Directory, Topology

EXCHANGE, FETCH, START, STATE, MAP, APPLIED = range(6)  # kinds of request
ADDRESS = 1024  # bytes of the reply to MAP, JSON and spaces


class Step(Protocol):
    """An optimizer over some weights. ``state`` is as long as they are; empty if it has none."""

    state: np.ndarray

    def __call__(self, gradients: np.ndarray, factor: float) -> None:
        """One step at ``factor`` times the learning rate."""


MakeStep = Callable[[np.ndarray], Step]  # the step of a sync PS's optimizer, for its shard of the weights


def shards(size: int, servers: int) -> list[slice]:
    """Each server's shard of a vector of ``size`` floats: contiguous parts of nearly equal size."""
    edges = [size * server // servers for server in range(servers + 1)]
    return [slice(start, stop) for start, stop in zip(edges, edges[1:], strict=False)]


class CenterExchange(Exchange):
    """A trainer's end: snapshots for the center's old values. The first trainer's first thread sends the initial
    center: all start equal.
    """

    def __init__(self, options: RoundOptions, weights: np.ndarray, context: RoundContext, thread: int = 0) -> None:
        super().__init__(options, weights, context)
        self.thread, self._servers = thread, context.sync_ps
        self.shards = shards(weights.size, len(self._servers))
        self._reply = np.empty_like(weights)
        if thread == 0 and context.replicas.rank == 0:
            self._send(START, dict(enumerate(self.shards_of(weights))))

    def reference(self, snapshot: np.ndarray, active: bool) -> np.ndarray:
        """The old center; the sync PSs move it."""
        return self.ask(EXCHANGE, self.shards_of(snapshot))

    def force_dense(self) -> None:
        """Make the next exchange dense, whatever the codec."""
        return

    # The center as a whole

    def model(self) -> np.ndarray:
        """The center, after every trainer's last round and before anybody's next."""
        self._meet("the other trainers' last round")
        center = self.fetch()
        self._meet("the other trainers (to fetch the center)")
        return center

    def restore_center(self, servers: Collection[int], center: np.ndarray, saved: Mapping[str, np.ndarray]) -> None:
        """The first trainer sends the initial values; the others wait until they have arrived."""
        if self.context.replicas.rank == 0:
            self._send(START, {i: shard for i, shard in enumerate(self.shards_of(center)) if i in servers})
            self.restore_optimizer(servers, saved)
            self.fetch()
        self._meet("the other trainers (to restore lost state)")

    def restore_optimizer(self, servers: Collection[int], saved: Mapping[str, np.ndarray]) -> None:
        """Restore the saved optimizer state of those sync PSs, if they have any."""
        return

    def adopt_model(self) -> None:
        """The center is the common model."""
        self.weights[:] = self.fetch()

    def goodbye(self) -> None:
        """Of this trainer."""
        say_goodbye(self.context.center, self._servers, self.context.waiting)

    def fetch(self, kind: int = FETCH) -> np.ndarray:
        """The center, or the state of its optimizer, as one vector (parameters,)."""
        return self.ask(kind, [np.empty(0, np.float32)] * len(self._servers)).copy()

    # Messages

    def ask(self, kind: int, messages: list[np.ndarray]) -> np.ndarray:
        """Send each sync PS its message and receive its shard; the whole vector, until the next call."""
        self.call(kind, messages, self.shards_of(self._reply))
        return self._reply

    def call(self, kind: int, messages: list[np.ndarray], answers: list[np.ndarray]) -> None:
        """Send each sync PS its message and wait for its answer."""
        center = self.context.center
        replies = [center.irecv(answer, r, self.thread) for r, answer in zip(self._servers, answers, strict=True)]
        self._send(kind, dict(enumerate(messages)))
        wait_all(replies, self.context.waiting, "the sync PSs")

    def call_for_payloads(self, messages: list[np.ndarray]) -> list[np.ndarray]:
        """As ``ask``, for an exchange where each sync PS answers with a codec's payload."""
        center = self.context.center
        buffers = [np.empty(compress.most_bytes(part.stop - part.start), np.uint8) for part in self.shards]
        replies = [center.irecv_some(into, r, self.thread) for r, into in zip(self._servers, buffers, strict=True)]
        self._send(EXCHANGE, dict(enumerate(messages)))
        wait_all(replies, self.context.waiting, "the sync PSs")
        answers = [buffer[: compress.length_of(buffer)] for buffer in buffers]
        for answer in answers:
            center.meter.received(answer.nbytes)
        return answers

    def shards_of(self, vector: np.ndarray) -> list[np.ndarray]:
        """A vector (parameters,) by sync PS, without copies."""
        return [vector[part] for part in self.shards]

    def _send(self, kind: int, messages: Mapping[int, np.ndarray]) -> None:
        """Send some sync PSs, by index, a message each."""
        tag = request_tag(kind, self.thread)
        sends = [self.context.center.isend(message, self._servers[i], tag) for i, message in messages.items()]
        wait_all(sends, self.context.waiting, "the sync PSs")

    def _meet(self, whom: str) -> None:
        wait(self.context.replicas.ibarrier(), self.context.waiting, whom)


class Center(ABC):
    """A sync PS's end: its ``shard`` of the vector, float32, in ``memory``. ``handle`` is the handler of
    ``Service.serve``.
    """

    def __init__(self, service: Service, memory: ArrayMemory, *, shared: bool) -> None:
        self._service, self._own = service, memory
        self._memory = memory.part("center", shared=shared)
        self.shard, self._started = np.empty(0, np.float32), False
        self._early: list[tuple[int, int, np.ndarray]] = []
        self._lock: contextlib.AbstractContextManager[None] = contextlib.nullcontext()

    def handle(self, source: int, tag: int, payload: np.ndarray) -> None:
        """Answer one request; requests before the first trainer's START are deferred."""
        kind, thread = divmod(tag, THREADS)
        if kind == START:
            self._start(payload.view(np.float32))
        elif not self._started:
            self._early.append((source, tag, payload.copy()))
        else:
            self._service.reply(source, thread, self.answer(kind, (source, thread), payload))

    def answer(self, kind: int, client: tuple[int, int], payload: np.ndarray) -> np.ndarray:
        """The reply to a client's request, in a buffer of the service; a client is a trainer's thread."""
        if kind == MAP:
            buffer = self._service.buffer(ADDRESS)
            buffer[:] = np.frombuffer(self._memory.address.ljust(ADDRESS), np.uint8)
            return buffer
        buffer, words = self._service.buffer(self.shard.nbytes), payload.view(np.float32)
        reply = buffer.view(np.float32)
        if kind == EXCHANGE:
            with self._lock:
                self.exchange(client, words, reply)
        elif kind == STATE:
            state = self.state()
            state[:] = words if words.size else state
            reply[:] = state
        else:
            reply[:] = self.shard
        return buffer

    @abstractmethod
    def exchange(self, client: tuple[int, int], words: np.ndarray, reply: np.ndarray) -> None:
        """Update the shard by a client's message, and fill in the reply."""

    def state(self) -> np.ndarray:
        """The optimizer state of the shard: a live array of the same length."""
        raise AssertionError(f"{type(self).__name__} has no optimizer")

    def _start(self, values: np.ndarray) -> None:
        """The first trainer sends the initial values: at the start, and again if they were lost."""
        if self._started:
            with self._lock:
                self.shard[:] = values
                self.reset()
            return
        self.allocate(values)
        self._started = True
        self._own.ready()
        early, self._early = self._early, []
        for message in early:
            self.handle(*message)

    def reset(self) -> None:
        """The shard has new initial values."""
        return

    def allocate(self, values: np.ndarray) -> None:
        """Allocate the shard: with initial values from the first trainer, or as an earlier process left it."""
        self.shard = placed(self._memory, values)
        if self._memory.address:
            self._lock = SharedLock(os.dup(self._memory.file))


class CenterSynchronizer(Synchronizer):
    """An algorithm whose trainers exchange with a center on sync PSs."""

    partner = SYNC_PS
    no_codec = ""
    exchange: CenterExchange

    @classmethod
    @abstractmethod
    def make_center(cls, options: RoundOptions, optimizer: MakeStep, service: Service, memory: ArrayMemory) -> Center:
        """What a sync PS holds in its ``memory``; ``optimizer`` is for algorithms that take optimizer steps there."""


class MemberMemory:
    """The part of a sync PS's memory that one member's center uses. It calls ``ready`` when that center is complete."""

    def __init__(self, memory: ArrayMemory, member: int, ready: Callable[[], None]) -> None:
        self._memory, self._suffix, self.ready = memory, f" of member {member}", ready

    def part(self, name: str, *, shared: bool) -> Memory:
        """As ``ArrayMemory``."""
        return self._memory.part(name + self._suffix, shared=shared)

    def array(self, name: str, shape: tuple[int, ...], dtype: DTypeLike) -> np.ndarray:
        """As ``ArrayMemory``."""
        return self._memory.array(name + self._suffix, shape, dtype)


class MemberCenters:
    """The centers that a sync PS holds for groups of trainers, made by ``make``: each member of a replica has one, of
    the parameters that it owns, and asks for nothing of the others. Trainers have the places of ``topology`` and the
    ranks of ``clients``. ``handle`` is the handler of ``Service.serve``.
    """

    def __init__(
        self, make: Callable[[MemberMemory], Center], topology: Topology, clients: Directory, memory: ArrayMemory
    ) -> None:
        self._missing, self._memory = topology.group, memory
        self.of_member = [make(MemberMemory(memory, member, self._ready)) for member in range(topology.group)]
        self._of_client = {
            rank: self.of_member[topology.place_of(index).member]
            for rank, (role, index) in enumerate(clients.members)
            if role is Role.TRAINER
        }

    def handle(self, source: int, tag: int, payload: np.ndarray) -> None:
        """Let the center of the asking member answer."""
        self._of_client[source].handle(source, tag, payload)

    def _ready(self) -> None:
        """Each center is complete once; the memory is when all are."""
        self._missing -= 1
        if not self._missing:
            self._memory.ready()
