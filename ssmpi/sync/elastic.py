"""Exchanges that pull replica and center towards each other, and the center that is pulled.

A trainer that can map the center of every sync PS moves its replica and the center itself, in place: a round is then
one pass over both, without messages, and the sync PSs sleep. With a codec both ends keep mirrors, see
``elastic_mirrors``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ssmpi import compress
from ssmpi.runtime.compiled.jit import njit
from ssmpi.runtime.mpi.rank_memory import ArrayMemory
from ssmpi.runtime.mpi.service import Service
from ssmpi.runtime.mpi.shared_lock import SharedLock, leave, take
from ssmpi.runtime.mpi.shared_memory import attach
from ssmpi.sync.center import CenterExchange
from ssmpi.sync.center_shard import ADDRESS, MAP, Center
from ssmpi.sync.codecs import codec_of, count_entries
from ssmpi.sync.elastic_mirrors import ClientMirrors, ReplicaMirrors, pull_together
from ssmpi.sync.exchange import Refer, divergence
from ssmpi.sync.options import DENSE, RoundOptions
from ssmpi.sync.round_context import RoundContext


@dataclass(frozen=True)
class MappedShard:
    """A sync PS's shard on this host, by fragment, and the same parts of the live replica, float32 each."""

    lock: SharedLock
    center: list[np.ndarray]
    replica: list[np.ndarray]


@njit(cache=True, nogil=True)
def pull_center(center: np.ndarray, snapshot: np.ndarray, alpha: float, old: np.ndarray) -> None:
    """old = center; center += alpha (snapshot - center)."""
    a = np.float32(alpha)
    for i in range(center.shape[0]):
        old[i] = center[i]
        center[i] -= a * (center[i] - snapshot[i])


@njit(cache=True, nogil=True)
def pull_alone(lock: int, center: np.ndarray, replica: np.ndarray, alpha: float) -> bool:
    """``pull_together`` while holding a lock; False, and nothing has changed, if the lock could not be taken."""
    if not take(lock):
        return False
    pull_together(center, replica, alpha)
    leave(lock)
    return True


class MappedCenter(CenterExchange):
    """In place, if this trainer can map the shards of all sync PSs; else as the base class."""

    def __init__(self, options: RoundOptions, weights: np.ndarray, context: RoundContext, thread: int = 0) -> None:
        super().__init__(options, weights, context, thread)
        self.mapped = self._map()
        nothing = np.empty(0, np.float32)
        for shard in self.mapped:
            self.move(shard.lock, nothing, nothing)  # compiles now, not in the first round

    def round(self, fragment: int, active: bool, refer: Refer) -> bool:
        """As the base class."""
        if not self.mapped:
            return super().round(fragment, active, refer)
        if self.begin_measuring():
            center = np.concatenate([shard.center[fragment] for shard in self.mapped])
            self._divergence = divergence(center, self.weights[self.fragments[fragment]])
        for shard in self.mapped:
            self.move(shard.lock, shard.center[fragment], shard.replica[fragment])
        return True

    def move(self, lock: SharedLock, center: np.ndarray, replica: np.ndarray) -> None:
        """Pull a shard and the live replica together, both in place, while holding the lock."""
        if not pull_alone(lock.file, center, replica, self.alpha):
            with lock:  # a signal interrupted the wait; or this raises the lock's error
                pull_together(center, replica, self.alpha)

    def _map(self) -> list[MappedShard]:
        """The shards of all sync PSs; empty unless this trainer can map all of them."""
        answers = [np.empty(ADDRESS, np.uint8) for _ in self._servers]
        self.call(MAP, [np.empty(0, np.uint8)] * len(answers), answers)
        try:
            return [self._mapped_shard(index, bytes(answer).rstrip()) for index, answer in enumerate(answers)]
        except OSError:
            return []  # on another host, or in another container: use messages

    def _mapped_shard(self, server: int, address: bytes) -> MappedShard:
        replica = [self.weights[parts[server]] for parts in self.shards]
        sizes = [part.size for part in replica]
        center = attach(address, 4 * sum(sizes)).view(np.float32)
        return MappedShard(SharedLock.at(address), np.split(center, np.cumsum(sizes)[:-1]), replica)


class MirroredCenter(CenterExchange):
    """By payloads both ways. The first and the last rounds of a part of the run are dense."""

    def __init__(self, options: RoundOptions, weights: np.ndarray, context: RoundContext, thread: int = 0) -> None:
        super().__init__(options, weights, context, thread)
        compress.compile_kernels(codec_of(options))
        seed = context.replicas.rank, thread
        self._mirrors = ReplicaMirrors(options, self.shards, context.local.replica.layers, seed)

    def reference(self, snapshot: np.ndarray, fragment: int, active: bool) -> np.ndarray:
        """The center as mirrored; the snapshot becomes the old replica."""
        payloads = self._mirrors.replica.send(self.snapshot, fragment)
        count_entries(payloads, self.context.center.meter.traffic)
        self._mirrors.receive(self.call_for_payloads(fragment, payloads), fragment)
        part = self.fragments[fragment]
        reference = self._reply[part]
        self._mirrors.move(part, self.alpha, reference, snapshot)
        return reference

    def renew(self) -> None:
        """Both ways: a sync PS answers dense payloads with dense ones."""
        self._mirrors.replica.renew()

    def restart(self) -> None:
        """As the base class."""
        super().restart()
        self.renew()


class ElasticCenter(Center):
    """Is pulled towards each snapshot by ``alpha``; with a codec by mirrors of each client."""

    def __init__(self, options: RoundOptions, service: Service, memory: ArrayMemory) -> None:
        self._options, self._encoded = options, options.codec != DENSE
        if self._encoded:
            compress.compile_kernels(codec_of(options))
        super().__init__(options.fragments, service, memory, shared=options.shared_memory and not self._encoded)
        self._clients: dict[tuple[int, int], ClientMirrors] = {}
        nothing = np.empty(0, np.float32)
        pull_center(nothing, nothing, 0.0, nothing)  # compile now, not in the first round
        pull_together(nothing, nothing, 0.0)

    def exchange(self, fragment: int, client: tuple[int, int], words: np.ndarray, reply: np.ndarray) -> None:
        """The old values, and a step towards the snapshot."""
        pull_center(self.shards[fragment], words, self._options.alpha, reply)

    def answer(self, fragment: int, client: tuple[int, int], payload: np.ndarray) -> np.ndarray:
        """As the base class; with a codec by this client's mirrors."""
        if not self._encoded:
            return super().answer(fragment, client, payload)
        if client not in self._clients:
            place = self._service.rank, *client
            self._clients[client] = ClientMirrors(self._options, self.slices, place, self._difference)
        alpha = self._options.alpha
        return self.buffer_of(self._clients[client].exchange(fragment, payload, self.vector, alpha))

    def allocate(self) -> None:
        """With a codec also the scratch space of all clients' mirrors."""
        super().allocate()
        self._difference = np.empty(self.largest if self._encoded else 0, np.float32)
