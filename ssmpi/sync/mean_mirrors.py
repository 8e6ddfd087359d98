"""Model averaging by mirrors. Each of n trainers owns a shard of every fragment; payloads are reduced to the owners and
gathered from them, as in Ok-Topk (Li, Hoefler, PPoPP 2022, arXiv 2201.07598). The owners hold a mirror r_i of trainer
i's replica w_i, and all trainers a mirror m of the mean::

    r_i = r_i + encode(w_i - r_i)          each trainer sends to each owner
    v   = mean of r_i + q                  over those that train; q: the pending part of the mean
    m   = m + encode(v - m);  q = v - m    each owner sends to all
    d_i = alpha (m - r_i)                  on the trainer and on the owner, from what both ends know
    w_i = w_i + d_i;  r_i = r_i + d_i      so mean of w_i + alpha q is conserved to rounding, whatever is sent

Updates that a trainer has not sent, w_i - r_i, stay in its replica; those it has sent leave it and come back with the
mean, at once or, through q, later. With a codec that drops nothing q is 0 and the round is model averaging. The first
round of a part of the run is dense, and at its end q goes to all, so mirrors are not state, see ``elastic_mirrors``.
Only a kill within a part needs q, which is therefore in memory that outlives a process.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ssmpi.compress import MirrorReceiver, MirrorSender, ShardCodecs
from ssmpi.runtime.topology import Role, Topology
from ssmpi.runtime.traffic import Link
from ssmpi.sync.codecs import codec_of, expected_bytes
from ssmpi.sync.cost import RoundCost
from ssmpi.sync.exchange import merge_difference
from ssmpi.sync.options import RoundOptions
from ssmpi.sync.shards import packed, shards

WEIGHT = 4  # bytes of a message to an owner before its payload: whether its sender trains, float32

PASSES = 2.0  # nanoseconds of a core for an entry, of mean and moves, besides codecs: 'jobs.lab exchanges'


class MeanMirrors:
    """The mirrors of one of ``number`` trainers, which sends its ``replica`` to the owners and, as an owner, its shard
    of the ``mean`` to all. ``pending`` float32 (parameters,) is q, ``replicas`` are those of all trainers, both on the
    own shards.
    """

    def __init__(
        self, options: RoundOptions, borders: Sequence[int], place: tuple[int, int], pending: np.ndarray
    ) -> None:
        (self.rank, self.number), self.pending, codec = place, pending, codec_of(options)
        self.shards = shards(pending.size, options.fragments, self.number)
        own = [[parts[self.rank]] for parts in self.shards]
        self.replica = MirrorSender(ShardCodecs(codec, self.shards, borders, (self.rank, 0)))
        self.mean = MirrorReceiver(self.shards)
        self._own_mean = MirrorSender(ShardCodecs(codec, own, borders, (self.rank, 1)), self.mean.copy)
        beside = packed(own)
        self.replicas = [
            MirrorReceiver(own, self.replica.copy) if trainer == self.rank else MirrorReceiver(beside)
            for trainer in range(self.number)
        ]
        self._target = np.empty(pending.size, np.float32)

    def renew(self) -> None:
        """Make the next round of each fragment dense."""
        self.replica.renew()
        self._own_mean.renew()

    def receive_replica(self, trainer: int, payload: np.ndarray, fragment: int) -> None:
        """As an owner, apply another trainer's payload of its replica."""
        self.replicas[trainer].receive(payload, fragment)

    def answer(self, active: Sequence[bool], fragment: int) -> np.ndarray:
        """As an owner, encode the mean of the active trainers, at least one; the payload is for all trainers."""
        part = self.shards[fragment][self.rank]
        target = self._target[part]
        target[:] = 0.0
        for counts, replica in zip(active, self.replicas, strict=True):
            if counts:
                target += replica.shard(fragment)
        target /= np.float32(sum(active))
        target += self.pending[part]
        (payload,) = self._own_mean.send(self._target, fragment)
        np.subtract(target, self.mean.copy[part], out=target)
        return payload

    def receive_mean(self, owner: int, payload: np.ndarray, fragment: int) -> None:
        """Apply the payload of another shard's owner to the mean."""
        self.mean.receive(payload, fragment, owner)

    def move(self, fragment: int, alpha: float, replica_was: np.ndarray) -> np.ndarray:
        """Move the mirrors of all replicas towards the mean. Returns that mean, valid until the next ``answer``;
        ``replica_was`` float32 (fragment,) becomes the old mirror of the own replica. q is updated only now: after an
        earlier kill, with answers in flight, the replicas have not moved.
        """
        parts = self.shards[fragment]
        self.pending[parts[self.rank]] = self._target[parts[self.rank]]
        own, span = self.mean.copy[parts[self.rank]], slice(parts[0].start, parts[-1].stop)
        for trainer, replica in enumerate(self.replicas):
            if trainer != self.rank:
                mirrored = replica.shard(fragment)
                merge_difference(mirrored, own, mirrored, alpha)
        mean, mirrored = self.mean.copy[span], self.replica.copy[span]
        reference = self._target[span]  # already stored in replica_was
        reference[:], replica_was[:] = mean, mirrored
        merge_difference(mirrored, mean, mirrored, alpha)
        return reference


def cost(options: RoundOptions, topology: Topology, parameters: int) -> RoundCost:
    """What a trainer sends, at the configured density: the mean if shards have unequal sizes. Its processor: the
    mirrors of its replica and of its shard of the mean, and the moves of all of them.

    Mirrors take the own replica, the mean, its pending part, which is kept, and its target, and for n trainers the
    others' replicas on the own shard: 5 - 1 / n. Payloads of the replica and of the own shard of the mean: 1 + 1 / n.
    Payloads of others, and differences of a shard of replica and mean: (1 + 2 / n) of a fragment.
    """
    number, found = topology.replicas, shards(parameters, options.fragments, topology.replicas)
    sent = (number - 1) / number * (WEIGHT * number * options.fragments + 2 * expected_bytes(codec_of(options), found))
    codec, share = codec_of(options)[0].nanoseconds, 1 / number
    each = (1 + share) * codec.send + 2 * (1 - share) * codec.receive + PASSES if number > 1 else 0.0
    mirrors = math.ceil(6 + (1 + 2 * share) / options.fragments)
    return RoundCost({Link.TRAINERS: sent}, 1e-9 * parameters * each, 1, {Role.TRAINER: mirrors})
