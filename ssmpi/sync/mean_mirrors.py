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

from collections.abc import Sequence

import numpy as np

from ssmpi.compress import Copy
from ssmpi.core.traffic import Traffic
from ssmpi.sync.base import merge_difference
from ssmpi.sync.mirrors import MirroredShards, expected_bytes
from ssmpi.sync.options import RoundOptions
from ssmpi.sync.parts import shards

WEIGHT = 4  # bytes of a message to an owner before its payload: whether its sender trains, float32

PASSES = 2.0  # nanoseconds of a core for an entry, of mean and moves, besides codecs: 'ssmpi bench compression'


class MeanMirrors:
    """The mirrors of one of ``number`` trainers: ``replica.copy`` mirrors its replica, ``mean.copy`` the mean, and
    ``pending`` is q on the own shards, all float32 (parameters,). By fragment and trainer, ``heard`` mirrors all
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
        self.heard = [
            [self.replica.copy[part] if k == self.rank else np.zeros(part.stop - part.start, np.float32)
             for k in range(self.number)]
            for (part,) in own
        ]  # fmt: skip
        self._target = np.empty(size, np.float32)

    def begin(self) -> None:
        """Make the next round of each fragment dense."""
        self.replica.begin()
        self.mean.begin()

    def hear(self, trainer: int, payload: np.ndarray, fragment: int) -> None:
        """As an owner, apply another trainer's payload of its replica."""
        Copy(self.heard[fragment][trainer]).receive(payload)

    def answer(self, active: Sequence[bool], fragment: int, traffic: Traffic) -> np.ndarray:
        """As an owner, encode the mean of the active trainers, at least one; the payload is for all trainers."""
        part = self.shards[fragment][self.rank]
        target = self._target[part]
        target[:] = 0.0
        for counts, heard in zip(active, self.heard[fragment], strict=True):
            if counts:
                target += heard
        target /= np.float32(sum(active))
        target += self.pending[part]
        (payload,) = self.mean.encode(self._target, fragment, traffic)
        np.subtract(target, self.mean.copy[part], out=target)
        return payload

    def learn(self, owner: int, payload: np.ndarray, fragment: int) -> None:
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
        for trainer, heard in enumerate(self.heard[fragment]):
            if trainer != self.rank:
                merge_difference(heard, own, heard, alpha)
        mean, replica = self.mean.copy[whole], self.replica.copy[whole]
        reference = self._target[whole]  # already stored in replica_was
        reference[:], replica_was[:] = mean, replica
        merge_difference(replica, mean, replica, alpha)
        return reference


def sent_bytes(options: RoundOptions, parameters: int, number: int) -> float:
    """What each of ``number`` trainers sends in a round of every fragment, at the configured density; the mean if
    shards have unequal sizes.
    """
    found = shards(parameters, options.fragments, number)
    return (number - 1) / number * (WEIGHT * number * options.fragments + 2 * expected_bytes(options, found))
