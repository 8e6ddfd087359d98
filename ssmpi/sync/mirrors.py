"""Mirrors of vectors that are split into shards: see ``compress.mirror``."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ssmpi import compress
from ssmpi.comm.rank_memory import ProcessMemory
from ssmpi.compress import Codec, CodecOptions, Mirror
from ssmpi.core.traffic import Traffic
from ssmpi.sync.options import DENSE, RoundOptions
from ssmpi.sync.pushes import Encoders, Shards, codec_of


class MirroredShards:
    """Some shards of a vector, by fragment, that other ranks mirror; ``copy`` float32 (parameters,) is what these hold.
    The first payloads of each fragment are dense.
    """

    def __init__(
        self, options: RoundOptions, shards: Shards, borders: Sequence[int], seed: Sequence[int], size: int
    ) -> None:
        self.copy, self._shards, self._begun = np.zeros(size, np.float32), shards, set[int]()
        room = np.empty(max(part.stop - part.start for parts in shards for part in parts), np.float32)
        some = Encoders(options, shards, borders, ProcessMemory(), seed).codecs
        whole = [[whole_codec(part.stop - part.start) for part in parts] for parts in shards]
        self._some, self._whole = (
            [[Mirror(c, self.copy[p], room) for c, p in zip(cs, ps, strict=True)]
             for cs, ps in zip(codecs, shards, strict=True)]
            for codecs in (some, whole)
        )  # fmt: skip

    def begin(self) -> None:
        """Make the next payloads of each fragment dense."""
        self._begun.clear()

    def encode(self, vector: np.ndarray, fragment: int, traffic: Traffic) -> list[np.ndarray]:
        """Encode each shard of a fragment of ``vector`` float32 (parameters,); payloads are valid until the next
        call.
        """
        mirrors = (self._some if fragment in self._begun else self._whole)[fragment]
        self._begun.add(fragment)
        payloads = [mirror.send(vector[part]) for mirror, part in zip(mirrors, self._shards[fragment], strict=True)]
        for payload in payloads:
            traffic.add_entries(*compress.count_of(payload))
        return payloads


def seed_of(*numbers: int) -> int:
    """A codec's seed, different for every client, server and fragment."""
    return int(np.random.SeedSequence(numbers).generate_state(1)[0])


def whole_codec(size: int) -> Codec:
    """A dense codec for a vector of ``size`` entries."""
    return compress.make(DENSE, CodecOptions(), size)


def expected_bytes(options: RoundOptions, shards: Shards) -> float:
    """Payload bytes of all shards of every fragment, at the configured density."""
    kind, own = codec_of(options)
    return sum(kind.expected_bytes(own, part.stop - part.start) for parts in shards for part in parts)


def merge_error(options: RoundOptions) -> str:
    """Why mirrors do not support these settings; empty if they do, or without a codec."""
    why = "moves replicas with a codec only by what both ends know: set sync.merge = 'difference'"
    return why if options.merge != "difference" and options.codec != DENSE else ""
