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
from ssmpi.core.topology import Topology
from ssmpi.sync import elastic_mirrors
from ssmpi.sync.center import Centered
from ssmpi.sync.center_shard import EXCHANGE, Center, MakeStep
from ssmpi.sync.cost import RoundCost
from ssmpi.sync.elastic_mirrors import ClientMirrors, ReplicaMirrors, pull_together
from ssmpi.sync.mirrors import merge_error, whole_codec
from ssmpi.sync.options import DENSE, RoundOptions
from ssmpi.sync.parts import shards
from ssmpi.sync.round_context import RoundContext


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

    def __init__(self, options: RoundOptions, weights: np.ndarray, context: RoundContext, thread: int = 0) -> None:
        super().__init__(options, weights, context, thread)
        self._mirrors: ReplicaMirrors | None = None
        if options.codec != DENSE:
            parts = shards(weights.size, len(self.fragments), len(self._servers))
            layers, seed = context.local.replica.layers, (context.trainers.rank, thread)
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
    def cost(cls, options: RoundOptions, topology: Topology, parameters: int) -> RoundCost:
        """As the base class; or, with a codec, what ``elastic_mirrors`` counts."""
        if options.codec == DENSE:
            return super().cost(options, topology, parameters)
        return elastic_mirrors.cost(options, topology, parameters)

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
        payloads = mirrors.replica.encode(self.snapshot, fragment, self.context.center.meter.traffic)
        mirrors.receive(self.call_for_payloads(EXCHANGE, fragment, payloads), fragment)
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
