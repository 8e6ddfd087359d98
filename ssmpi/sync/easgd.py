"""Elastic averaging SGD, S-EASGD and FR-EASGD (Zhang, Choromanska, LeCun, NeurIPS 2015; ShadowSync, arXiv 2003.03477)::

    d   = alpha (w_i - c)          both lines from the old values, so that w_i + c is conserved
    w_i = w_i - d                  on the trainer, by the difference to its snapshot
    c   = c + d                    on the sync PSs, shard by shard

Centralised and asynchronous: a trainer exchanges with the center alone, and waits for no other trainer.
What n trainers learn is shared by n + 1 vectors, so all move at n / (n + 1) of the speed of model averaging: half, with
one.

With a codec both ends keep mirrors, see ``elastic_mirrors``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numba import njit

from ssmpi import compress
from ssmpi.comm.rank_memory import RankMemory
from ssmpi.comm.service import Service
from ssmpi.comm.shared_lock import SharedLock, leave, take
from ssmpi.compress import Codec
from ssmpi.core.topology import Role, Topology
from ssmpi.core.traffic import Link
from ssmpi.sync.center import Centered
from ssmpi.sync.center_shard import EXCHANGE, Center, MakeStep
from ssmpi.sync.elastic_mirrors import PASSES, ClientMirrors, ReplicaMirrors, pull_together
from ssmpi.sync.mirrors import expected_bytes, merge_error, whole_codec
from ssmpi.sync.options import DENSE, RoundOptions
from ssmpi.sync.parts import shards
from ssmpi.sync.peers import Peers
from ssmpi.sync.pushes import clients, codec_of


@dataclass(frozen=True)
class EASGDOptions:
    """``[sync.easgd]`` has no settings of its own."""

    REMOVED: ClassVar = {"coupling": 0.0}


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


class EASGD(Centered):
    """Pulls replica and center towards each other."""

    Options: ClassVar[type] = EASGDOptions
    in_place = True

    def __init__(self, options: RoundOptions, weights: np.ndarray, peers: Peers, thread: int = 0) -> None:
        super().__init__(options, weights, peers, thread)
        self._mirrors: ReplicaMirrors | None = None
        if options.codec != DENSE:
            parts = shards(weights.size, len(self.fragments), len(self._servers))
            layers, seed = peers.local.replica.layers, (peers.trainers.rank, thread)
            self._mirrors = ReplicaMirrors(options, parts, layers, seed, weights.size)
        for shard in self.mapped:
            nothing = np.empty(0, np.float32)
            self.move(shard.lock, nothing, nothing, 0.0)  # compiles now, not in the first round

    @classmethod
    def codec_error(cls, options: RoundOptions) -> str:
        """Mirrors follow the moves of what they mirror, but interpolation moves a replica by an amount that the other
        end does not know.
        """
        return merge_error(options)

    @classmethod
    def round_bytes(cls, options: RoundOptions, topology: Topology, parameters: int) -> dict[Link, float]:
        """With a codec, payloads both ways; the first and the last round of a part of the run are dense."""
        found = super().round_bytes(options, topology, parameters)
        if options.codec == DENSE:
            return found
        payloads = expected_bytes(options, shards(parameters, options.fragments, topology.sync_ps))
        beside = found[Link.CENTER_PUSH] - 4.0 * parameters
        return {Link.CENTER_PUSH: payloads + beside, Link.CENTER_PULL: payloads}

    @classmethod
    def codec_seconds(cls, options: RoundOptions, topology: Topology, parameters: int) -> float:
        """The time of a mirror in each direction, and of moving both at both ends."""
        if options.codec == DENSE:
            return 0.0
        cost = codec_of(options)[0].nanoseconds
        return 1e-9 * parameters * (2 * (cost.send + cost.receive) + PASSES)

    @classmethod
    def mirror_vectors(cls, options: RoundOptions, topology: Topology) -> dict[Role, int]:
        """Mirrors of replica and center, payloads (one shared dense payload on sync PSs), and the difference to send,
        for each client.
        """
        if options.codec == DENSE:
            return {}
        own = clients(options, topology)
        return {Role.TRAINER: 5 * own, Role.SYNC_PS: 4 * own * topology.trainers + 1}

    @staticmethod
    def server(options: RoundOptions, optimizer: MakeStep, service: Service, memory: RankMemory) -> Center:
        """A center that is pulled."""
        return ElasticCenter(options, service, memory)

    def exchange(self, snapshot: np.ndarray, fragment: int, active: bool) -> np.ndarray:
        """The old center; the sync PSs move it towards the snapshot by the same d."""
        if self._mirrors:
            return self._exchange_by_mirrors(self._mirrors, snapshot, fragment)
        return self.ask(EXCHANGE, fragment, self.shards_of(snapshot, fragment))

    def _exchange_by_mirrors(self, mirrors: ReplicaMirrors, snapshot: np.ndarray, fragment: int) -> np.ndarray:
        """The center as mirrored; the snapshot becomes the old replica."""
        payloads = mirrors.replica.encode(self.snapshot, fragment, self.peers.center.meter.traffic)
        mirrors.hear(self.call_for_payloads(EXCHANGE, fragment, payloads), fragment)
        part = self.fragments[fragment]
        reference = self.reply[part]
        mirrors.move(part, self.alpha, reference, snapshot)
        return reference

    def close(self) -> None:
        """As the base class, by dense rounds; the next part starts with dense rounds too."""
        self._begin_mirrors()
        super().close()
        self._begin_mirrors()

    def restart(self) -> None:
        """As the base class."""
        super().restart()
        self._begin_mirrors()

    def _begin_mirrors(self) -> None:
        if self._mirrors:
            self._mirrors.replica.begin()

    def move(self, lock: SharedLock, center: np.ndarray, replica: np.ndarray, alpha: float) -> None:
        """Pull both."""
        if not pull_alone(lock.file, center, replica, alpha):
            with lock:  # a signal interrupted the wait; or this raises the lock's error
                pull_together(center, replica, alpha)


class ElasticCenter(Center):
    """Is pulled towards each snapshot by ``alpha``; with a codec by mirrors of each client."""

    def __init__(self, options: RoundOptions, service: Service, memory: RankMemory) -> None:
        self._options, self._encoded = options, options.codec != DENSE
        if self._encoded:
            compress.compile_kernels(options.codec)
        super().__init__(
            options.fragments, service, memory, shared=options.transport != "messages" and not self._encoded
        )
        self._clients: dict[tuple[int, int], ClientMirrors] = {}
        self._whole: list[Codec] = []
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
            self._whole = self._whole or [whole_codec(shard.size) for shard in self.shards]
            self._clients[client] = ClientMirrors(self._options, self._whole, (self._service.rank, *client))
        shard, alpha = self.shards[fragment], self._options.alpha
        return self.buffer_of(self._clients[client].exchange(fragment, payload, shard, alpha))
