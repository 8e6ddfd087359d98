"""A trainer's end of a conversation with sync PSs, which hold a center in shards: see ``center_shard``.

A trainer that can map the center of every sync PS moves its replica and the center itself, in place: a round is then
one pass over both, without messages, and the sync PSs sleep. Each fragment of the vector is dealt to the sync PSs in
shards, so that all of them share every round.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np

from ssmpi import compress
from ssmpi.comm.rank_memory import RankMemory
from ssmpi.comm.service import Service, say_goodbye
from ssmpi.comm.shared_lock import SharedLock
from ssmpi.comm.shared_memory import attach
from ssmpi.comm.waiting import wait, wait_all
from ssmpi.core.topology import Topology
from ssmpi.core.traffic import Link
from ssmpi.sync.base import SYNC_PS, Synchronizer, divergence
from ssmpi.sync.center_shard import ADDRESS, FETCH, MAP, START, THREADS, Center, MakeStep
from ssmpi.sync.cost import RoundCost
from ssmpi.sync.options import DENSE, RoundOptions
from ssmpi.sync.parts import cut
from ssmpi.sync.round_context import RoundContext


@dataclass(frozen=True)
class MappedShard:
    """A sync PS's shard on this host, by fragment, and the same parts of the live replica, float32 each."""

    lock: SharedLock
    center: list[np.ndarray]
    replica: list[np.ndarray]


class Centered(Synchronizer):
    """Exchanges with the center only and waits for no other trainer. Several worker threads may do so concurrently,
    each with its own synchronizer.
    """

    partner, each_thread = SYNC_PS, True
    in_place = False  # replica and center can be moved in one pass

    def __init__(self, options: RoundOptions, weights: np.ndarray, context: RoundContext, thread: int = 0) -> None:
        super().__init__(options, weights, context)
        self._thread, self._servers = thread, context.sync_ps
        self._shards = [cut(f.stop - f.start, len(self._servers)) for f in self.fragments]
        self.reply = np.empty_like(weights)
        if thread == 0 and context.trainers.rank == 0:  # all start equal: the first one sends the initial center
            self._start()
        in_place = (
            self.in_place and options.merge == "difference" and options.codec == DENSE
        )  # interpolation must lose concurrent updates; a codec must be used
        self.mapped = self._map() if in_place and options.transport != "messages" else []

    @classmethod
    def topology_error(cls, topology: Topology) -> str:
        """A center needs sync PSs."""
        return "" if topology.sync_ps else "keeps its center on sync PSs: set topology.sync_ps = 1 or more"

    @classmethod
    def cost(cls, options: RoundOptions, topology: Topology, parameters: int) -> RoundCost:
        """The vector there and back."""
        return RoundCost({Link.CENTER_PUSH: 4.0 * parameters, Link.CENTER_PULL: 4.0 * parameters})

    @staticmethod
    @abstractmethod
    def server(options: RoundOptions, optimizer: MakeStep, service: Service, memory: RankMemory) -> Center:
        """The center of a sync PS, in its ``memory``, for the ``[sync]`` settings; ``optimizer`` is for centers that
        take optimizer steps.
        """

    def step(self, active: bool = True) -> bool:
        """As the base class; in place if the center is mapped."""
        if not self.mapped:
            return super().step(active)
        fragment = self.next_fragment()
        if self.measures_now():
            self.divergence = self._divergence(fragment)
        for shard in self.mapped:
            self.move(shard.lock, shard.center[fragment], shard.replica[fragment], self.alpha)
        return True

    def move(self, lock: SharedLock, center: np.ndarray, replica: np.ndarray, alpha: float) -> None:
        """Exchange a shard with the live replica, both in place, while holding the lock."""
        raise AssertionError(f"{type(self).__name__} moves no center")

    def close(self) -> None:
        """A last round over the whole vector, one per trainer; no other trainer waits for it."""
        if self._thread == 0:
            for _ in self.fragments:
                self.round()

    def model(self) -> np.ndarray:
        """The center, after every trainer's last round and before anybody's next."""
        wait(self.context.trainers.ibarrier(), self.context.waiting, "the other trainers' last round")
        center = self.fetch()
        wait(self.context.trainers.ibarrier(), self.context.waiting, "the other trainers (to fetch the center)")
        return center

    def restart(self) -> None:
        """The first trainer sends the initial center again; the others wait until it has arrived."""
        if self.context.trainers.rank == 0:
            self._start()
            self.fetch()
        wait(self.context.trainers.ibarrier(), self.context.waiting, "the other trainers (to end their warm-up)")

    def recenter(self, servers: Collection[int], center: np.ndarray, saved: Mapping[str, np.ndarray]) -> None:
        """The first trainer sends the initial values; the others wait until they have arrived."""
        if self.context.trainers.rank == 0:
            for fragment, part in enumerate(self.fragments):
                shards = enumerate(self.shards_of(center[part], fragment))
                self.send_some(START, {index: shard for index, shard in shards if index in servers})
            self.remember(servers, saved)
            self.fetch()
        wait(self.context.trainers.ibarrier(), self.context.waiting, "the other trainers (to restore lost state)")

    def remember(self, servers: Collection[int], saved: Mapping[str, np.ndarray]) -> None:
        """Restore the saved optimizer state of those sync PSs, if they have any."""

    def join(self) -> None:
        """The center is the common model."""
        self.weights[:] = self.fetch()

    def goodbye(self) -> None:
        """Tell the sync PSs that this trainer sends no more requests."""
        say_goodbye(self.context.center, self._servers, self.context.waiting)

    def ask(self, kind: int, fragment: int, messages: list[np.ndarray]) -> np.ndarray:
        """Send each sync PS its message about a fragment and receive its shard of it; the whole, until the next
        call.
        """
        reply = self.reply[self.fragments[fragment]]
        self.call(kind, messages, [reply[s] for s in self._shards[fragment]])
        return reply

    def send_all(self, kind: int, messages: list[np.ndarray]) -> None:
        """Send each sync PS its message."""
        self.send_some(kind, dict(enumerate(messages)))

    def send_some(self, kind: int, messages: Mapping[int, np.ndarray]) -> None:
        """Send some sync PSs, by index, a message each."""
        tag = kind * THREADS + self._thread
        sends = [self.context.center.isend(message, self._servers[i], tag) for i, message in messages.items()]
        wait_all(sends, self.context.waiting, "the sync PSs")

    def _map(self) -> list[MappedShard]:
        """The shards of all sync PSs; empty unless this trainer can map all of them."""
        answers = [np.empty(ADDRESS, np.uint8) for _ in self._servers]
        self.call(MAP, [np.empty(0, np.uint8)] * len(answers), answers)
        try:
            return [self._mapped_shard(index, bytes(answer).rstrip()) for index, answer in enumerate(answers)]
        except OSError:
            return []  # on another host, or in another container: use messages

    def _mapped_shard(self, server: int, address: bytes) -> MappedShard:
        places = [shards[server] for shards in self._shards]
        replica = [self.weights[part][place] for part, place in zip(self.fragments, places, strict=True)]
        sizes = [part.size for part in replica]
        center = attach(address, 4 * sum(sizes)).view(np.float32)
        return MappedShard(SharedLock.at(address), np.split(center, np.cumsum(sizes)[:-1]), replica)

    def _divergence(self, fragment: int) -> float:
        center = np.concatenate([shard.center[fragment] for shard in self.mapped])
        return divergence(center, self.weights[self.fragments[fragment]])

    def call(self, kind: int, messages: list[np.ndarray], answers: list[np.ndarray]) -> None:
        """Send each sync PS its message and wait for its answer."""
        center = self.context.center
        replies = [center.irecv(answer, r, self._thread) for r, answer in zip(self._servers, answers, strict=True)]
        self.send_all(kind, messages)
        wait_all(replies, self.context.waiting, "the sync PSs")

    def call_for_payloads(self, kind: int, fragment: int, messages: list[np.ndarray]) -> list[np.ndarray]:
        """As ``call`` about a fragment, where each sync PS answers with a codec's payload."""
        center, parts = self.context.center, self._shards[fragment]
        rooms = [np.empty(compress.most_bytes(part.stop - part.start), np.uint8) for part in parts]
        replies = [center.irecv_some(room, r, self._thread) for r, room in zip(self._servers, rooms, strict=True)]
        self.send_all(kind, messages)
        wait_all(replies, self.context.waiting, "the sync PSs")
        answers = [room[: compress.length_of(room)] for room in rooms]
        for answer in answers:
            center.meter.received(answer.nbytes)
        return answers

    def shards_of(self, vector: np.ndarray, fragment: int) -> list[np.ndarray]:
        """A fragment's vector by sync PS, without copies."""
        return [vector[s] for s in self._shards[fragment]]

    def _start(self) -> None:
        for fragment, part in enumerate(self.fragments):
            self.send_all(START, self.shards_of(self.weights[part], fragment))

    def fetch(self, kind: int = FETCH) -> np.ndarray:
        """The center, or the state of its optimizer, as one vector (parameters,)."""
        nothing = [np.empty(0, np.float32)] * len(self._servers)
        for fragment in range(len(self.fragments)):
            self.ask(kind, fragment, nothing)
        return self.reply.copy()
