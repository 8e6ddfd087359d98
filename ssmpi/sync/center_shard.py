"""The center as a sync PS holds it: its shard of every fragment. A client goes through the fragments in turn, and so
does the shard for each client: no message need say which it is about.
"""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from typing import Protocol

import numpy as np

from ssmpi.comm.service import Service
from ssmpi.comm.shared_memory import attach

EXCHANGE, FETCH, START, COUPLE, STATE, MAP, MEET = range(7)  # kinds of message; the asking thread's number tags a reply
THREADS = 1000


class Step(Protocol):
    """An optimizer over some weights. ``state`` is what it remembers, as long as they are; empty if it remembers
    nothing.
    """

    state: np.ndarray

    def __call__(self, gradients: np.ndarray, factor: float) -> None:
        """One step at ``factor`` times the learning rate."""


MakeStep = Callable[[np.ndarray], Step]  # the step of a sync PS's optimizer, for one shard of the weights


def distance(center: np.ndarray, replica: np.ndarray) -> np.ndarray:
    """Sums of squares of their difference and of the center, float64 (2,)."""
    apart = center - replica
    return np.array([np.dot(apart, apart), np.dot(center, center)], float)


class Center(ABC):
    """What a sync PS holds: its shard of every fragment, float32 each. ``handle`` is the handler of
    ``Service.serve``.
    """

    def __init__(self, fragments: int, service: Service) -> None:
        self._service = service
        self.shards: list[np.ndarray] = []
        self._fragments = fragments
        self._turns: Counter[tuple[int, int]] = Counter()
        self._early: list[tuple[int, int, np.ndarray]] = []
        self._replicas: dict[
            tuple[int, int], list[np.ndarray]
        ] = {}  # of clients on this host: its part of each fragment

    def handle(self, source: int, tag: int, payload: np.ndarray) -> None:
        """Answer one request; those before the first trainer's START wait for it."""
        kind, thread = divmod(tag, THREADS)
        if kind == MAP:
            self._reply_to((source, thread), np.array([self._map((source, thread), bytes(payload))], float))
            return
        if kind != START and len(self.shards) < self._fragments:
            self._early.append((source, tag, payload.copy()))
            return
        if kind == MEET:
            self._reply_to((source, thread), self._meet((source, thread), *payload.view(float).tolist()))
            return
        words = payload.view(np.float32)
        if kind == COUPLE:
            self.set_alpha((source, thread), words)
            return
        fragment = self._turns[source, tag] % self._fragments
        self._turns[source, tag] += 1
        if kind == START:
            self._start(fragment, words.copy())
            return
        buffer = self._service.buffer(self.shards[fragment].nbytes)
        if kind == EXCHANGE:
            self.exchange(fragment, (source, thread), words, buffer.view(np.float32))
        elif kind == STATE:
            state = self.state(fragment)
            state[:] = words if words.size else state
            buffer.view(np.float32)[:] = state
        else:
            buffer.view(np.float32)[:] = self.shards[fragment]
        self._service.reply(source, thread, buffer)

    @abstractmethod
    def exchange(self, fragment: int, client: tuple[int, int], words: np.ndarray, reply: np.ndarray) -> None:
        """Move the shard of a fragment by what a client, a trainer's thread, sent, and fill in the reply to it."""

    def meet(self, center: np.ndarray, replica: np.ndarray, alpha: float) -> None:
        """Exchange a shard with the live replica of a client on this host, both in place."""
        raise AssertionError(f"{type(self).__name__} moves no replica")

    def _meet(self, client: tuple[int, int], fragment: float, alpha: float, measures: float) -> np.ndarray:
        """What ``meet`` is for, and what the client counts of it: see ``Centered._meet``."""
        busy = time.thread_time()
        replica, center = self._replicas[client][int(fragment)], self.shards[int(fragment)]
        squares = distance(center, replica) if measures else np.zeros(2)
        self.meet(center, replica, alpha)
        return np.append(squares, time.thread_time() - busy)

    def _map(self, client: tuple[int, int], text: bytes) -> bool:
        asked = json.loads(text)
        try:
            vector = attach(asked["address"], asked["bytes"]).view(np.float32)
        except OSError:
            return False  # on another host, or in another container: by messages then
        self._replicas[client] = [vector[start:stop] for start, stop in asked["slices"]]
        return True

    def _reply_to(self, client: tuple[int, int], values: np.ndarray) -> None:
        buffer = self._service.buffer(values.nbytes)
        buffer.view(values.dtype)[:] = values
        self._service.reply(*client, buffer)

    def state(self, fragment: int) -> np.ndarray:
        """What the center's optimizer remembers of its shard of a fragment: a live array as long as that."""
        raise AssertionError(f"{type(self).__name__} remembers nothing, of fragment {fragment} or any other")

    def set_alpha(self, client: tuple[int, int], words: np.ndarray) -> None:
        """A client says how its next exchange is to be taken."""
        raise AssertionError(f"{client} sent a coupling, but this center does not support it")

    def _start(self, fragment: int, values: np.ndarray) -> None:
        if fragment < len(self.shards):
            self.shards[fragment] = values
        else:
            self.shards.append(values)
        if len(self.shards) == self._fragments:
            early, self._early = self._early, []
            for message in early:
                self.handle(*message)
