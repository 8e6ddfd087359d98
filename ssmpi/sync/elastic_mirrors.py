"""Elastic exchanges by mirrors, equal at both ends of an exchange: r of a trainer's replica w, and s of the center c as
sent to this client (EF21; see ``compress.mirror``)::

    r = r + encode(w - r)          the trainer sends
    s = s + encode(c - s)          the sync PS answers
    d = alpha (s - r)              on both ends, from what both know
    w = w + d;  c = c - d          the same d, so w_i + c is conserved to rounding, whatever is sent
    r = r + d;  s = s - d          so w - r are updates that the replica has not sent, c - s updates that
                                   this client has not received from the center

Updates that are not sent yet are deferred, not lost: neither end is pulled back for what the other has not received,
and what both know converges in every round. If each end were pulled by its own vector and the other's mirror, as in
EF21, a replica would lose its unsent updates to the center. With a codec that drops nothing r is w and s is c: the
exchange equals the dense one to the last bit. The first and the last exchange of a part of the run are dense, so
mirrors are not state: neither checkpoints nor memory that outlives a process hold them, and a run can resume with any
number of trainers. A sync PS keeps two vectors as long as its shards for each client, a trainer or one of its threads.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ssmpi import compress
from ssmpi.compress import MirrorReceiver, MirrorSender, ShardCodecs, Shards
from ssmpi.runtime.compiled.jit import njit
from ssmpi.runtime.topology import Role, Topology
from ssmpi.runtime.traffic import Link
from ssmpi.sync.codecs import codec_of, expected_bytes
from ssmpi.sync.cost import RoundCost
from ssmpi.sync.exchange import merge_difference
from ssmpi.sync.options import RoundOptions
from ssmpi.sync.shards import shards

PASSES = 1.3  # nanoseconds of a core for an entry, of both ends' moves, besides codecs: 'jobs.lab exchanges'


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


class ReplicaMirrors:
    """A trainer's end of the exchanges with all sync PSs: it sends its ``replica`` and receives the ``center``."""

    def __init__(self, options: RoundOptions, parts: Shards, borders: Sequence[int], seed: Sequence[int]) -> None:
        self.replica = MirrorSender(ShardCodecs(codec_of(options), parts, borders, seed))
        self.center = MirrorReceiver(parts)
        pull_together(self.center.copy[:0], self.center.copy[:0], 0.0)  # compiles now, not in the first round

    def receive(self, answers: Sequence[np.ndarray], fragment: int) -> None:
        """Apply the answers of the sync PSs."""
        for server, answer in enumerate(answers):
            self.center.receive(answer, fragment, server)

    def move(self, part: slice, alpha: float, center_was: np.ndarray, replica_was: np.ndarray) -> None:
        """Move both mirrors of a fragment, and store their old values, float32 (fragment,) each."""
        center, replica = self.center.copy[part], self.replica.copy[part]
        center_was[:], replica_was[:] = center, replica
        pull_together(center, replica, alpha)


class ClientMirrors:
    """A sync PS's end of the exchanges with one client: it receives the ``replica`` and sends the ``center``, in one
    shard for each fragment. ``place`` is the sync PS's rank and the client's rank and thread.
    """

    def __init__(
        self, options: RoundOptions, parts: Shards, place: Sequence[int], scratch: np.ndarray | None = None
    ) -> None:
        self.replica = MirrorReceiver(parts)
        self.center = MirrorSender(ShardCodecs(codec_of(options), parts, seed=place), scratch=scratch)

    def exchange(self, fragment: int, payload: np.ndarray, center: np.ndarray, alpha: float) -> np.ndarray:
        """Apply the client's payload and move a fragment of ``center`` float32 (size,); returns the answer, valid until
        the next. A dense payload gets a dense answer.
        """
        if compress.is_dense(payload):
            self.center.renew(fragment)
        self.replica.receive(payload, fragment)
        (answer,) = self.center.send(center, fragment)
        sent, replica = self.center.shard(fragment), self.replica.shard(fragment)
        merge_difference(center[self.center.shards[fragment][0]], replica, sent, alpha)
        pull_together(sent, replica, alpha)
        return answer


def cost(options: RoundOptions, topology: Topology, parameters: int) -> RoundCost:
    """Payloads both ways, at the configured density (the first and the last round of a part of the run are dense); a
    mirror in each direction, and the moves of both at both ends. For each client, mirrors of replica and center, a
    payload, and the difference to send, of which a sync PS needs one.
    """
    payloads = expected_bytes(codec_of(options), shards(parameters, options.fragments, topology.sync_ps))
    codec, own = codec_of(options)[0].nanoseconds, options.clients(topology.replica_lanes)
    return RoundCost(
        {Link.CENTER_PUSH: payloads, Link.CENTER_PULL: payloads},
        1e-9 * parameters * (2 * (codec.send + codec.receive) + PASSES),
        mirrors={Role.TRAINER: 4 * own, Role.SYNC_PS: 3 * own * topology.replicas + 1},
    )
