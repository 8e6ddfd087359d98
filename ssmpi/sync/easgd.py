"""Elastic averaging SGD, S-EASGD and FR-EASGD (Zhang, Choromanska, LeCun, NeurIPS 2015; ShadowSync, arXiv 2003.03477)::

    d   = alpha (w_i - c)          both lines from the old values, so that w_i + c is conserved
    w_i = w_i - d                  on the trainer, by the difference to its snapshot
    c   = c + d                    on the sync PSs, shard by shard

Centralised and asynchronous: a trainer exchanges with the center alone, and waits for no other trainer.
What n trainers learn is shared by n + 1 vectors, so all move at n / (n + 1) of the speed of model averaging: half, with
one. A trainer that can map the center of every sync PS moves its replica and the center itself, in place: a round is
then one pass over both, without messages, and the sync PSs sleep.

With a codec both ends keep mirrors, equal at both ends: r of a trainer's replica w, and s of the center c as sent to
this client (EF21; see ``compress.mirror``)::

    r = r + encode(w - r)          the trainer sends
    s = s + encode(c - s)          the sync PS answers
    d = alpha (s - r)              on both ends, from what both know
    w = w + d;  c = c - d          the same d, so w_i + c is conserved to rounding, whatever is sent
    r = r + d;  s = s - d          so w - r are updates that the replica has not sent, c - s updates that
                                   this client has not received from the center

Updates that are not sent yet are deferred, not lost: neither end is pulled back for what the other has not received,
and what both know converges in every round. If each end were pulled by its own vector and the other's mirror, as in
EF21, a replica would lose its unsent updates to the center. With a codec that drops nothing r is w and s is c: the
exchange equals the dense one to the last bit. The first and the last exchange of a segment of the run are dense, so
mirrors are not state: neither checkpoints nor memory that outlives a process hold them, and a run can resume with any
number of trainers. A sync PS keeps two vectors as long as its shard for each client, a trainer or one of its threads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ssmpi import compress
from ssmpi.compress import MirrorReceiver, MirrorSender, ShardCodecs
from ssmpi.runtime.compiled.jit import njit
from ssmpi.runtime.mpi.rank_memory import ArrayMemory
from ssmpi.runtime.mpi.service import Service
from ssmpi.runtime.mpi.shared_lock import SharedLock, leave, take
from ssmpi.runtime.mpi.shared_memory import attach
from ssmpi.runtime.topology import Role, Topology
from ssmpi.runtime.traffic import Link
from ssmpi.sync.base import MergeTarget, RoundCost, Synchronizer, divergence, merge_difference
from ssmpi.sync.center import (
    ADDRESS,
    EXCHANGE,
    MAP,
    Center,
    CenterExchange,
    CenterSynchronizer,
    MakeStep,
    shards,
)
from ssmpi.sync.options import DENSE, RoundOptions, codec_of, count_entries, expected_bytes
from ssmpi.sync.round_context import RoundContext

PASSES = 1.3  # nanoseconds of a core for an entry, of both ends' moves, besides codecs: 'jobs.lab exchanges'


@dataclass(frozen=True)
class EASGDOptions:
    """``[sync.easgd]`` has no settings of its own."""

    REMOVED: ClassVar = {"coupling": (0.0, "")}


class EASGD(CenterSynchronizer):
    """Pulls replica and center towards each other."""

    Options: ClassVar[type] = EASGDOptions

    @classmethod
    def make_exchange(
        cls, options: RoundOptions, weights: np.ndarray, context: RoundContext, thread: int = 0
    ) -> CenterExchange:
        """By mirrors with a codec; else in place, unless the algorithm moves replicas elsewhere."""
        if options.codec != DENSE:
            return MirroredCenter(options, weights, context, thread)
        in_place = options.shared_memory and cls.merge_target is Synchronizer.merge_target
        return (InPlaceCenter if in_place else CenterExchange)(options, weights, context, thread)

    @classmethod
    def make_center(cls, options: RoundOptions, optimizer: MakeStep, service: Service, memory: ArrayMemory) -> Center:
        """Without an optimizer."""
        return ElasticCenter(options, service, memory)

    @classmethod
    def cost(cls, options: RoundOptions, topology: Topology, parameters: int) -> RoundCost:
        """The vector there and back; with a codec, payloads both ways at the configured density (the first and the last
        round of a segment are dense), a mirror in each direction, and the moves of both at both ends. For each client,
        mirrors of replica and center, a payload, and the difference to send, of which a sync PS needs one.
        """
        if options.codec == DENSE:
            return RoundCost({Link.CENTER_PUSH: 4.0 * parameters, Link.CENTER_PULL: 4.0 * parameters})
        payloads = expected_bytes(codec_of(options), shards(parameters, topology.sync_ps))
        codec, clients = codec_of(options)[0].nanoseconds, options.clients(topology.replica_lanes)
        return RoundCost(
            {Link.CENTER_PUSH: payloads, Link.CENTER_PULL: payloads},
            1e-9 * parameters * (2 * (codec.send + codec.receive) + PASSES),
            mirrors={Role.TRAINER: 4 * clients, Role.SYNC_PS: 3 * clients * topology.replicas + 1},
        )

    def last_rounds(self) -> None:
        """One of the trainer; no other trainer waits for it. It is dense, as is the next one."""
        self.exchange.force_dense()
        if self.exchange.thread == 0:
            self.round()
        self.exchange.force_dense()


@njit(cache=True, nogil=True)
def pull_together(center: np.ndarray, replica: np.ndarray, alpha: float) -> None:
    """Move center and replica, float32 (n,) each, or their mirrors, towards each other by alpha times their difference,
    in place: both lines of the exchange.
    """
    a = np.float32(alpha)
    for i in range(center.shape[0]):
        d = a * (center[i] - replica[i])
        center[i] -= d
        replica[i] += d


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


@dataclass(frozen=True)
class MappedShard:
    """A sync PS's shard on this host, and the same part of the live replica, float32 each."""

    lock: SharedLock
    center: np.ndarray
    replica: np.ndarray


class InPlaceCenter(CenterExchange):
    """In place, if this trainer can map the shards of all sync PSs; else as the base class."""

    def __init__(self, options: RoundOptions, weights: np.ndarray, context: RoundContext, thread: int = 0) -> None:
        super().__init__(options, weights, context, thread)
        self.mapped = self._map()
        nothing = np.empty(0, np.float32)
        for shard in self.mapped:
            self.move(shard.lock, nothing, nothing)  # compiles now, not in the first round

    def round(self, active: bool, merge_target: MergeTarget) -> bool:
        """As the base class."""
        if not self.mapped:
            return super().round(active, merge_target)
        if self.begin_measuring():
            self._divergence = divergence(np.concatenate([shard.center for shard in self.mapped]), self.weights)
        for shard in self.mapped:
            self.move(shard.lock, shard.center, shard.replica)
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
        mapped = []
        try:
            for answer, replica in zip(answers, self.shards_of(self.weights), strict=True):
                address = bytes(answer).rstrip()
                center = attach(address, replica.nbytes).view(np.float32)
                mapped.append(MappedShard(SharedLock.at(address), center, replica))
        except OSError:
            return []  # on another host, or in another container: use messages
        return mapped


class MirroredCenter(CenterExchange):
    """By payloads both ways. The first and the last rounds of a segment of the run are dense."""

    def __init__(self, options: RoundOptions, weights: np.ndarray, context: RoundContext, thread: int = 0) -> None:
        super().__init__(options, weights, context, thread)
        compress.compile_kernels(codec_of(options))
        seed = context.replicas.rank, thread
        self._mirrors = ReplicaMirrors(options, self.shards, context.local.replica.layers, seed)

    def reference(self, snapshot: np.ndarray, active: bool) -> np.ndarray:
        """The center as mirrored; the snapshot becomes the old replica."""
        payloads = self._mirrors.replica.send(snapshot)
        count_entries(payloads, self.context.center.meter.traffic)
        self._mirrors.receive(self.call_for_payloads(payloads))
        self._mirrors.move(self.alpha, self._reply, snapshot)
        return self._reply

    def force_dense(self) -> None:
        """Both ways: a sync PS answers dense payloads with dense ones."""
        self._mirrors.replica.force_dense()


class ReplicaMirrors:
    """A trainer's end of the exchanges with all sync PSs: it sends its ``replica`` and receives the ``center``."""

    def __init__(
        self, options: RoundOptions, parts: Sequence[slice], borders: Sequence[int], seed: Sequence[int]
    ) -> None:
        self.replica = MirrorSender(ShardCodecs(codec_of(options), parts, borders, seed))
        self.center = MirrorReceiver(parts)
        pull_together(self.center.copy[:0], self.center.copy[:0], 0.0)  # compiles now, not in the first round

    def receive(self, answers: Sequence[np.ndarray]) -> None:
        """Apply the answers of the sync PSs."""
        for server, answer in enumerate(answers):
            self.center.receive(answer, server)

    def move(self, alpha: float, center_was: np.ndarray, replica_was: np.ndarray) -> None:
        """Move both mirrors, and store their old values, float32 (parameters,) each."""
        center, replica = self.center.copy, self.replica.copy
        center_was[:], replica_was[:] = center, replica
        pull_together(center, replica, alpha)


class ClientMirrors:
    """A sync PS's end of the exchanges with one client, over its shard of ``size`` floats: it receives the ``replica``
    and sends the ``center``. ``place`` is the sync PS's rank and the client's rank and thread.
    """

    def __init__(
        self, options: RoundOptions, size: int, place: Sequence[int], scratch: np.ndarray | None = None
    ) -> None:
        whole = [slice(0, size)]
        self.replica = MirrorReceiver(whole)
        self.center = MirrorSender(ShardCodecs(codec_of(options), whole, seed=place), scratch=scratch)

    def exchange(self, payload: np.ndarray, center: np.ndarray, alpha: float) -> np.ndarray:
        """Apply the client's payload and move ``center`` float32 (size,); returns the answer, valid until the next. A
        dense payload gets a dense answer.
        """
        if compress.is_dense(payload):
            self.center.force_dense()
        self.replica.receive(payload)
        (answer,) = self.center.send(center)
        sent, replica = self.center.copy, self.replica.copy
        merge_difference(center, replica, sent, alpha)
        pull_together(sent, replica, alpha)
        return answer


class ElasticCenter(Center):
    """Is pulled towards each snapshot by ``alpha``; with a codec by mirrors of each client."""

    def __init__(self, options: RoundOptions, service: Service, memory: ArrayMemory) -> None:
        self._options, self._encoded = options, options.codec != DENSE
        if self._encoded:
            compress.compile_kernels(codec_of(options))
        super().__init__(service, memory, shared=options.shared_memory and not self._encoded)
        self._clients: dict[tuple[int, int], ClientMirrors] = {}
        nothing = np.empty(0, np.float32)
        pull_center(nothing, nothing, 0.0, nothing)  # compile now, not in the first round
        pull_together(nothing, nothing, 0.0)

    def exchange(self, client: tuple[int, int], words: np.ndarray, reply: np.ndarray) -> None:
        """The old values, and a step towards the snapshot."""
        pull_center(self.shard, words, self._options.alpha, reply)

    def answer(self, kind: int, client: tuple[int, int], payload: np.ndarray) -> np.ndarray:
        """As the base class; with a codec an exchange is one by this client's mirrors."""
        if kind != EXCHANGE or not self._encoded:
            return super().answer(kind, client, payload)
        if client not in self._clients:
            place = self._service.rank, *client
            self._clients[client] = ClientMirrors(self._options, self.shard.size, place, self._difference)
        answer = self._clients[client].exchange(payload, self.shard, self._options.alpha)
        buffer = self._service.buffer(answer.size)
        buffer[:] = answer
        return buffer

    def allocate(self, values: np.ndarray) -> None:
        """With a codec also the scratch space of all clients' mirrors."""
        super().allocate(values)
        self._difference = np.empty(values.size if self._encoded else 0, np.float32)
