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
from numba import njit

from ssmpi import compress
from ssmpi.compress import Codec, Copy, Mirror
from ssmpi.core.topology import Role, Topology
from ssmpi.core.traffic import Link
from ssmpi.sync.cost import RoundCost
from ssmpi.sync.exchange import merge_difference
from ssmpi.sync.mirrors import MirroredShards, expected_bytes, seed_of
from ssmpi.sync.options import RoundOptions
from ssmpi.sync.parts import shards
from ssmpi.sync.pushes import Shards, clients, codec_of

PASSES = 1.3  # nanoseconds of a core for an entry, of both ends' moves, besides codecs: 'ssmpi bench compression'


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
    """A trainer's end of the exchanges with all sync PSs: ``replica.copy`` mirrors the replica, ``center`` the center,
    both float32 (parameters,).
    """

    def __init__(
        self, options: RoundOptions, parts: Shards, borders: Sequence[int], seed: Sequence[int], size: int
    ) -> None:
        self.replica, self.center = MirroredShards(options, parts, borders, seed, size), np.zeros(size, np.float32)
        self._copies = [[Copy(self.center[part]) for part in each] for each in parts]
        pull_together(self.center[:0], self.center[:0], 0.0)  # compiles now, not in the first round

    def receive(self, answers: Sequence[np.ndarray], fragment: int) -> None:
        """Apply the answers of the sync PSs."""
        for copy, answer in zip(self._copies[fragment], answers, strict=True):
            copy.receive(answer)

    def move(self, part: slice, alpha: float, center_was: np.ndarray, replica_was: np.ndarray) -> None:
        """Move both mirrors of a fragment, and store their old values, float32 (fragment,) each."""
        center, replica = self.center[part], self.replica.copy[part]
        center_was[:], replica_was[:] = center, replica
        pull_together(center, replica, alpha)


class ClientMirrors:
    """A sync PS's end of the exchanges with one client: by fragment, mirrors of the client's replica (``replicas``) and
    of the center (``centers``). ``whole`` are dense codecs of the shards, which several clients may share; ``place`` is
    the sync PS's rank and the client's rank and thread.
    """

    def __init__(self, options: RoundOptions, whole: Sequence[Codec], place: Sequence[int]) -> None:
        kind, own = codec_of(options)
        sizes = [codec.size for codec in whole]
        self.centers, room = [np.zeros(size, np.float32) for size in sizes], np.empty(max(sizes), np.float32)
        self.replicas = [Copy(np.zeros(size, np.float32)) for size in sizes]
        states = [np.zeros(kind.state_size(own, size, ())) for size in sizes]
        self._some = [
            Mirror(kind(own, c.size, (), state, seed_of(*place, fragment)), c, room)
            for fragment, (c, state) in enumerate(zip(self.centers, states, strict=True))
        ]
        self._all = [Mirror(codec, center, room) for codec, center in zip(whole, self.centers, strict=True)]

    def exchange(self, fragment: int, payload: np.ndarray, center: np.ndarray, alpha: float) -> np.ndarray:
        """Apply the client's payload and move the shard ``center`` float32 (shard,); returns the answer, valid until
        the next. A dense payload gets a dense answer.
        """
        replica, mirrors = self.replicas[fragment], self._all if compress.is_dense(payload) else self._some
        replica.receive(payload)
        answer, sent = mirrors[fragment].send(center), mirrors[fragment].copy
        merge_difference(center, replica.copy, sent, alpha)
        pull_together(sent, replica.copy, alpha)
        return answer


def cost(options: RoundOptions, topology: Topology, parameters: int) -> RoundCost:
    """Payloads both ways, at the configured density (the first and the last round of a part of the run are dense); a
    mirror in each direction, and the moves of both at both ends. For each client, mirrors of replica and center,
    payloads (sync PSs share a dense one) and the difference to send.
    """
    payloads = expected_bytes(options, shards(parameters, options.fragments, topology.sync_ps))
    codec, own = codec_of(options)[0].nanoseconds, clients(options, topology)
    return RoundCost(
        {Link.CENTER_PUSH: payloads, Link.CENTER_PULL: payloads},
        1e-9 * parameters * (2 * (codec.send + codec.receive) + PASSES),
        mirrors={Role.TRAINER: 5 * own, Role.SYNC_PS: 4 * own * topology.replicas + 1},
    )
