"""Both ends of a conversation with sync PSs: a trainer's synchronizer that exchanges with a center, and the center itself.

A sync PS on a trainer's host maps its replica and moves it and the center in place: then a round is one short message and
its answer. Each fragment of the vector is dealt to the sync PSs in shards, so that all of them share every round. A client goes
through the fragments in turn, and so does the center for each client: no message need say which it is about.
"""

from __future__ import annotations

import json
import math
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from typing import Protocol

import numpy as np

from ssmpi.comm.service import Service, say_goodbye
from ssmpi.comm.shared_memory import attach
from ssmpi.comm.waiting import wait, wait_all
from ssmpi.core.topology import Topology
from ssmpi.sync.base import SYNC_PS, Peers, Synchronizer, cut
from ssmpi.sync.options import RoundOptions

EXCHANGE, FETCH, START, COUPLE, STATE, MAP, MEET = range(7)  # kinds of message; the asking thread's number tags a reply
THREADS = 1000


class Step(Protocol):
    """An optimizer over some weights. ``state`` is what it remembers, as long as they are; empty if it remembers nothing."""

    state: np.ndarray

    def __call__(self, gradients: np.ndarray, factor: float) -> None:
        """One step at ``factor`` times the learning rate."""


MakeStep = Callable[[np.ndarray], Step]  # the step of a sync PS's optimizer, for one shard of the weights


class Centered(Synchronizer):
    """Exchanges with the center alone and waits for no other trainer. Several worker threads may do so at once, each
    through a synchronizer of its own.
    """

    partner, each_thread = SYNC_PS, True
    in_place = False  # the center can move a replica that it maps

    def __init__(self, options: RoundOptions, weights: np.ndarray, peers: Peers, thread: int = 0) -> None:
        super().__init__(options, weights, peers)
        self._thread, self._servers = thread, range(peers.first_ps, peers.center.size)
        self._shards = [cut(f.stop - f.start, len(self._servers)) for f in self.fragments]
        self._reply = np.empty_like(weights)
        in_place = (
            self.in_place and options.merge == "difference"
        )  # interpolating is to lose what was learned meanwhile
        self._mapped = in_place and options.transport != "messages" and self._map()
        if thread == 0 and peers.center.rank == 0:  # every trainer starts equal: the first one says from where
            self._start()

    @classmethod
    def misfit(cls, topology: Topology) -> str:
        """A center needs sync PSs."""
        return "" if topology.sync_ps else "keeps its center on sync PSs: set topology.sync_ps = 1 or more"

    @staticmethod
    @abstractmethod
    def server(options: RoundOptions, optimizer: MakeStep, service: Service) -> Center:
        """The center of a sync PS, for the ``[sync]`` settings; ``optimizer`` is for one that takes steps of its own."""

    def step(self, active: bool = True) -> bool:
        """As the base class; sync PSs that map the replica move it themselves."""
        if not self._mapped:
            return super().step(active)
        self._meet(self.next_fragment())
        return True

    def close(self) -> None:
        """A last round over the whole vector, one for the trainer: nobody waits for it."""
        if self._thread == 0:
            for _ in self.fragments:
                self.round()

    def model(self) -> np.ndarray:
        """The center, after every trainer's last round and before anybody's next."""
        wait(self.peers.trainers.ibarrier(), self.peers.patience, "the other trainers' last round")
        center = self.fetch()
        wait(self.peers.trainers.ibarrier(), self.peers.patience, "the other trainers (to fetch the center)")
        return center

    def restart(self) -> None:
        """The first trainer says where the center starts, once more, and nobody asks before it is there."""
        if self.peers.center.rank == 0:
            self._start()
            self.fetch()
        wait(self.peers.trainers.ibarrier(), self.peers.patience, "the other trainers (to end their warm-up)")

    def goodbye(self) -> None:
        """Tell the sync PSs that this trainer will not ask again."""
        say_goodbye(self.peers.center, self._servers, self.peers.patience)

    def ask(self, kind: int, fragment: int, messages: list[np.ndarray]) -> np.ndarray:
        """Send each sync PS its message about a fragment and receive its shard of it; the whole, until the next call."""
        reply = self._reply[self.fragments[fragment]]
        self._call(kind, messages, [reply[s] for s in self._shards[fragment]])
        return reply

    def tell(self, kind: int, messages: list[np.ndarray]) -> None:
        """Send each sync PS its message."""
        sends = [
            self.peers.center.isend(message, r, kind * THREADS + self._thread)
            for r, message in zip(self._servers, messages, strict=True)
        ]
        wait_all(sends, self.peers.patience, "the sync PSs")

    def _map(self) -> bool:
        """Ask every sync PS to map this replica; whether all of them do."""
        address = self.peers.local.replica.memory.address.decode()
        if not address:
            return False
        messages, answers = [], []
        for server in range(len(self._servers)):
            slices = [
                [part.start + shards[server].start, part.start + shards[server].stop]
                for part, shards in zip(self.fragments, self._shards, strict=True)
            ]
            text = json.dumps({"address": address, "bytes": self.weights.nbytes, "slices": slices})
            messages.append(np.frombuffer(text.encode(), np.uint8))
            answers.append(np.empty(1))
        self._call(MAP, messages, answers)
        return all(bool(answer[0]) for answer in answers)

    def _meet(self, fragment: int) -> None:
        """Let the sync PSs exchange a fragment of the live weights with the center."""
        measures = self.measures_now()
        answers = [np.empty(3) for _ in self._servers]
        self._call(MEET, [np.array([fragment, self.pull(fragment), measures])] * len(answers), answers)
        apart, length, seconds = np.sum(answers, axis=0).tolist()
        self.served_seconds += seconds
        if measures:
            self.divergence = math.sqrt(apart) / max(math.sqrt(length), 1e-30)

    def pull(self, fragment: int) -> float:
        """How far this exchange of a fragment pulls."""
        return self.alpha

    def _call(self, kind: int, messages: list[np.ndarray], answers: list[np.ndarray]) -> None:
        """Send each sync PS its message and wait for its answer."""
        center = self.peers.center
        replies = [center.irecv(answer, r, self._thread) for r, answer in zip(self._servers, answers, strict=True)]
        self.tell(kind, messages)
        wait_all(replies, self.peers.patience, "the sync PSs")

    def shards_of(self, vector: np.ndarray, fragment: int) -> list[np.ndarray]:
        """A fragment's vector by sync PS, without copies."""
        return [vector[s] for s in self._shards[fragment]]

    def _start(self) -> None:
        for fragment, part in enumerate(self.fragments):
            self.tell(START, self.shards_of(self.weights[part], fragment))

    def fetch(self, kind: int = FETCH) -> np.ndarray:
        """What the sync PSs hold, the center or the state of its optimizer, as one vector (parameters,)."""
        nothing = [np.empty(0, np.float32)] * len(self._servers)
        for fragment in range(len(self.fragments)):
            self.ask(kind, fragment, nothing)
        return self._reply.copy()


def distance(center: np.ndarray, replica: np.ndarray) -> np.ndarray:
    """Sums of squares of their difference and of the center, float64 (2,)."""
    apart = center - replica
    return np.array([np.dot(apart, apart), np.dot(center, center)], float)


class Center(ABC):
    """What a sync PS holds: its shard of every fragment, float32 each. ``handle`` is the handler of ``Service.serve``."""

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
            self.couple((source, thread), words)
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

    def couple(self, client: tuple[int, int], words: np.ndarray) -> None:
        """A client says how its next exchange is to be taken."""
        raise AssertionError(f"{client} couples with a center that knows no coupling")

    def _start(self, fragment: int, values: np.ndarray) -> None:
        if fragment < len(self.shards):
            self.shards[fragment] = values
        else:
            self.shards.append(values)
        if len(self.shards) == self._fragments:
            early, self._early = self._early, []
            for message in early:
                self.handle(*message)
