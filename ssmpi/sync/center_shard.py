"""The center as a sync PS holds it: its shard of every fragment. Each client exchanges the fragments in turn, and the
shard counts along, so messages do not name the fragment. If the center can be moved in place, it lies in memory that
trainers on the same host map; they and the sync PS, which serves trainers of other hosts, update it under that memory's
lock.
"""

from __future__ import annotations

import contextlib
import os
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from typing import Protocol

import numpy as np

from ssmpi.runtime.mpi.rank_memory import ArrayMemory
from ssmpi.runtime.mpi.service import THREADS, Service
from ssmpi.runtime.mpi.shared_lock import SharedLock
from ssmpi.runtime.mpi.shared_memory import placed
from ssmpi.sync.shards import packed

EXCHANGE, FETCH, START, STATE, MAP, APPLIED = range(6)  # kinds of request
ADDRESS = 1024  # bytes of the reply to MAP, JSON and spaces


class Step(Protocol):
    """An optimizer over some weights. ``state`` is as long as they are; empty if it has none."""

    state: np.ndarray

    def __call__(self, gradients: np.ndarray, factor: float) -> None:
        """One step at ``factor`` times the learning rate."""


MakeStep = Callable[[np.ndarray], Step]  # the step of a sync PS's optimizer, for one shard of the weights


class Center(ABC):
    """A sync PS's shard of every fragment, float32 each: ``slices`` of one ``vector`` in ``memory``. ``handle`` is the
    handler of ``Service.serve``.
    """

    def __init__(self, fragments: int, service: Service, memory: ArrayMemory, *, shared: bool) -> None:
        self._service, self._own = service, memory
        self._memory = memory.part("center", shared=shared)
        self.vector, self.shards = np.empty(0, np.float32), list[np.ndarray]()
        self._fragments = fragments
        self._turns: Counter[tuple[int, int]] = Counter()
        self._initial: list[np.ndarray] = []
        self._early: list[tuple[int, int, np.ndarray]] = []
        self._lock: contextlib.AbstractContextManager[None] = contextlib.nullcontext()

    def handle(self, source: int, tag: int, payload: np.ndarray) -> None:
        """Answer one request; requests before the first trainer's START are deferred."""
        kind, thread = divmod(tag, THREADS)
        if kind != START and not self.shards:
            self._early.append((source, tag, payload.copy()))
            return
        if kind == MAP:
            buffer = self._service.buffer(ADDRESS)
            buffer[:] = np.frombuffer(self._memory.address.ljust(ADDRESS), np.uint8)
            self._service.reply(source, thread, buffer)
            return
        words = payload.view(np.float32)
        fragment = self._turns[source, tag] % self._fragments
        self._turns[source, tag] += 1
        if kind == START:
            self.start(fragment, words)
            return
        if kind == EXCHANGE:
            self._service.reply(source, thread, self.answer(fragment, (source, thread), payload))
            return
        buffer = self._service.buffer(self.shards[fragment].nbytes)
        if kind == STATE:
            state = self.state(fragment)
            state[:] = words if words.size else state
            buffer.view(np.float32)[:] = state
        else:
            buffer.view(np.float32)[:] = self.shards[fragment]
            self.fetched(fragment, (source, thread))
        self._service.reply(source, thread, buffer)

    def answer(self, fragment: int, client: tuple[int, int], payload: np.ndarray) -> np.ndarray:
        """Handle a client's message about a fragment (a client is a trainer's thread); returns the reply, in a
        ``buffer``.
        """
        buffer = self._service.buffer(self.shards[fragment].nbytes)
        with self._lock:
            self.exchange(fragment, client, payload.view(np.float32), buffer.view(np.float32))
        return buffer

    def buffer_of(self, payload: np.ndarray) -> np.ndarray:
        """A buffer of the service with a codec's payload in it."""
        buffer = self._service.buffer(payload.size)
        buffer[:] = payload
        return buffer

    def fetched(self, fragment: int, client: tuple[int, int]) -> None:
        """A client fetches the whole shard of a fragment."""
        return

    @abstractmethod
    def exchange(self, fragment: int, client: tuple[int, int], words: np.ndarray, reply: np.ndarray) -> None:
        """Update the shard of a fragment by a client's message, and fill in the reply."""

    def state(self, fragment: int) -> np.ndarray:
        """The optimizer state of the shard of a fragment: a live array of the same length."""
        raise AssertionError(f"{type(self).__name__} remembers nothing, of fragment {fragment} or any other")

    def start(self, fragment: int, values: np.ndarray) -> None:
        """The first trainer sends the initial values of a fragment: at the start, and again after a warm-up."""
        if self.shards:
            with self._lock:
                self.shards[fragment][:] = values
            return
        self._initial.append(values.copy())
        if len(self._initial) == self._fragments:
            self.allocate()
            self._own.ready()
            early, self._early = self._early, []
            for message in early:
                self.handle(*message)

    def allocate(self) -> None:
        """Allocate the shards: with the initial values from the first trainer, or as an earlier process left them."""
        self.slices = packed([[slice(0, values.size)] for values in self._initial])
        self.vector, self._initial = placed(self._memory, np.concatenate(self._initial)), []
        self.shards = [self.vector[part] for (part,) in self.slices]
        self.largest = max(shard.size for shard in self.shards)
        if self._memory.address:
            self._lock = SharedLock(os.dup(self._memory.file))
