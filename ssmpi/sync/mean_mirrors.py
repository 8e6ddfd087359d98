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

from ssmpi.compress import Copy
from ssmpi.core.topology import Role, Topology
from ssmpi.core.traffic import Link, Traffic
from ssmpi.sync.cost import RoundCost
from ssmpi.sync.exchange import merge_difference
from ssmpi.sync.mirrors import MirroredShards, expected_bytes
from ssmpi.sync.options import RoundOptions
from ssmpi.sync.parts import shards
from ssmpi.sync.pushes import codec_of

WEIGHT = 4  # bytes of a message to an owner before its payload: whether its sender trains, float32

PASSES = 2.0  # nanoseconds of a core for an entry, of mean and moves, besides codecs: 'ssmpi bench compression'


class MeanMirrors:
    """The mirrors of one of ``number`` trainers: ``replica.copy`` mirrors its replica, ``mean.copy`` the mean, and
    ``pending`` is q on the own shards, all float32 (parameters,). By fragment and trainer, ``replicas`` mirrors all
    replicas on the own shard.
    """

    def __init__(
        self, options: RoundOptions, borders: Sequence[int], place: tuple[int, int], pending: np.ndarray
    ) -> None:
        (self.rank, self.number), self.pending, size = place, pending, pending.size
        self.shards = shards(size, options.fragments, self.number)
        own = [[parts[self.rank]] for parts in self.shards]
        self.replica, self.mean = (
            MirroredShards(options, parts, borders, (self.rank, kind), size)
            for kind, parts in enumerate((self.shards, own))
        )
        self.replicas = [
            [self.replica.copy[part] if k == self.rank else np.zeros(part.stop - part.start, np.float32)
             for k in range(self.number)]
            for (part,) in own
        ]  # fmt: skip
        self._target = np.empty(size, np.float32)

    def begin(self) -> None:
        """Make the next round of each fragment dense."""
        self.replica.begin()
        self.mean.begin()

    def receive_replica(self, trainer: int, payload: np.ndarray, fragment: int) -> None:
        """As an owner, apply another trainer's payload of its replica."""
        Copy(self.replicas[fragment][trainer]).receive(payload)

    def answer(self, active: Sequence[bool], fragment: int, traffic: Traffic) -> np.ndarray:
        """As an owner, encode the mean of the active trainers, at least one; the payload is for all trainers."""
        part = self.shards[fragment][self.rank]
        target = self._target[part]
        target[:] = 0.0
        for counts, replica in zip(active, self.replicas[fragment], strict=True):
            if counts:
                target += replica
        target /= np.float32(sum(active))
        target += self.pending[part]
        (payload,) = self.mean.encode(self._target, fragment, traffic)
        np.subtract(target, self.mean.copy[part], out=target)
        return payload

    def receive_mean(self, owner: int, payload: np.ndarray, fragment: int) -> None:
        """Apply the payload of another shard's owner to the mean."""
        Copy(self.mean.copy[self.shards[fragment][owner]]).receive(payload)

    def move(self, fragment: int, alpha: float, replica_was: np.ndarray) -> np.ndarray:
        """Move the mirrors of all replicas towards the mean. Returns that mean, valid until the next ``answer``;
        ``replica_was`` float32 (fragment,) becomes the old mirror of the own replica. q is updated only now: after an
        earlier kill, with answers in flight, the replicas have not moved.
        """
        parts = self.shards[fragment]
        self.pending[parts[self.rank]] = self._target[parts[self.rank]]
        own, whole = self.mean.copy[parts[self.rank]], slice(parts[0].start, parts[-1].stop)
        for trainer, mirrored in enumerate(self.replicas[fragment]):
            if trainer != self.rank:
                merge_difference(mirrored, own, mirrored, alpha)
        mean, replica = self.mean.copy[whole], self.replica.copy[whole]
        reference = self._target[whole]  # already stored in replica_was
        reference[:], replica_was[:] = mean, replica
        merge_difference(replica, mean, replica, alpha)
        return reference


def cost(options: RoundOptions, topology: Topology, parameters: int) -> RoundCost:
    """What a trainer sends, at the configured density: the mean if shards have unequal sizes. Its processor: the
    mirrors of its replica and of its shard of the mean, and the moves of all of them.

    Mirrors take the own replica, the mean, its pending part, which is kept, and its target, and for n trainers the
    others' replicas on the own shard: 5 - 1 / n. Two payloads each, encoded and dense, of the replica and of the own
    shard of the mean: 2 + 2 / n. Payloads of others, and differences of a shard of replica and mean: (1 + 2 / n) of a
    fragment.
    """
    number, found = topology.replicas, shards(parameters, options.fragments, topology.replicas)
    sent = (number - 1) / number * (WEIGHT * number * options.fragments + 2 * expected_bytes(options, found))
    codec, share = codec_of(options)[0].nanoseconds, 1 / number
    each = (1 + share) * codec.send + 2 * (1 - share) * codec.receive + PASSES if number > 1 else 0.0
    mirrors = math.ceil(7 + share + (1 + 2 * share) / options.fragments)
    return RoundCost({Link.TRAINERS: sent}, 1e-9 * parameters * each, 1, {Role.TRAINER: mirrors})
