"""Pulls of weights by a codec: a sync PS keeps a mirror of what each client, a trainer or one of its threads, holds of
its shard, and answers a push with the entries that differ most from it (EF21; see ``compress.mirror``).

Encoded pushes change few entries, so ``threshold:0``, which sends exactly the entries that changed, equals a dense pull
to the last bit at a fraction of its bytes. With any other share the client's copy, and with it its replica, may have
stale entries; nothing is lost, because every update is in the center or in the pending gradients.

Every client fetches the whole center when it starts, also after a kill, and a trainer's first thread also when a part
of a run ends; both ends then restart from there. Other threads' mirrors continue. So mirrors are neither in checkpoints
nor in memory that outlives a process, and a run can resume with any number of trainers. When the center is set to other
weights, after a warm-up or because it was lost, each client's next pull is dense.

A mirror has one threshold per shard: a sync PS does not know layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ssmpi import compress
from ssmpi.compress import Copy, Mirror
from ssmpi.core.topology import Role, Topology
from ssmpi.sync import pushes
from ssmpi.sync.mirrors import seed_of, whole_codec
from ssmpi.sync.options import DENSE, RoundOptions
from ssmpi.sync.pushes import Shards

Client = tuple[int, int]  # rank and thread


class PulledCenter:
    """A client's end: ``center`` float32 (parameters,) is its copy of the center."""

    def __init__(self, options: RoundOptions, shards: Shards, size: int) -> None:
        compress.compile_kernels(options.pull_codec)
        self.center = np.zeros(size, np.float32)
        self._copies = [[Copy(self.center[part]) for part in parts] for parts in shards]

    def receive(self, fragment: int, answers: Sequence[np.ndarray]) -> None:
        """Apply the payloads of all sync PSs for a fragment."""
        for copy, answer in zip(self._copies[fragment], answers, strict=True):
            copy.receive(answer)


class PullMirrors:
    """The end of the sync PS with this ``rank`` in the conversation, for all clients."""

    def __init__(self, options: RoundOptions, rank: int) -> None:
        self._rank, (self._kind, self._options) = rank, codec_of(options)
        compress.compile_kernels(options.pull_codec)
        self._mirrors: dict[tuple[Client, int], Mirror] = {}
        self._room = np.empty(0, np.float32)

    def fetched(self, client: Client, fragment: int, shard: np.ndarray) -> None:
        """A client fetches its whole shard of a fragment, float32 (shard,): its mirror restarts from there."""
        if (client, fragment) not in self._mirrors:
            state = np.zeros(self._kind.state_size(self._options, shard.size, ()))
            codec = self._kind(self._options, shard.size, (), state, seed_of(self._rank, *client, fragment))
            if self._room.size < shard.size:
                self._room = np.empty(shard.size, np.float32)
            self._mirrors[client, fragment] = Mirror(codec, np.empty_like(shard), self._room)
        self._mirrors[client, fragment].copy[:] = shard

    def started(self, fragment: int) -> None:
        """A shard was replaced: each client's next pull of it is dense."""
        self._mirrors = {key: mirror for key, mirror in self._mirrors.items() if key[1] != fragment}

    def answer(self, client: Client, fragment: int, shard: np.ndarray) -> np.ndarray:
        """A payload of what a client lacks of its shard of a fragment, valid until the client's next."""
        if mirror := self._mirrors.get((client, fragment)):
            return mirror.send(shard)
        self.fetched(client, fragment, shard)
        return whole_codec(shard.size).encode(shard)


def codec_of(options: RoundOptions) -> tuple[type[compress.Codec], compress.CodecOptions]:
    """The codec of pulls; SettingsError if there is none of that name."""
    return compress.parse(
        options.pull_codec, compress.CodecOptions(life_span=options.life_span, refresh=options.refresh)
    )


def expected_bytes(options: RoundOptions, shards: Shards, topology: Topology) -> float:
    """Payload of a pull of every fragment from all sync PSs, at the configured density; or of the entries that changed,
    if that is less: those that all threads push between two pulls of one.
    """
    (kind, own), (pushing, pushed) = codec_of(options), pushes.codec_of(options)
    if kind.takes_share and pushing.takes_share:
        changed = topology.lanes * (1.0 - pushed.share)
        own = replace(own, share=max(own.share, 1.0 - changed))
    return sum(kind.expected_bytes(own, part.stop - part.start) for parts in shards for part in parts)


def mirror_vectors(options: RoundOptions, topology: Topology) -> dict[Role, int]:
    """On a trainer, each client's copy of the center; on all sync PSs together, mirrors and payloads of all clients,
    and one difference.
    """
    if options.pull_codec == DENSE:
        return {}
    clients = pushes.clients(options, topology)
    return {Role.TRAINER: clients, Role.SYNC_PS: 2 * clients * topology.replicas + 1}
