"""The two ends of an edge between ranks: a sender encodes a vector shard by shard, a receiver applies the payloads.

What a payload leaves out is remembered in one of two ways. Gradients add up, so the vector itself keeps the rest
(``ShardCodecs.take``), and the receiver adds what it gets. Weights that another rank follows are mirrored there, and
the sender holds the same mirror (EF21; Richtarik et al., NeurIPS 2021, arXiv 2106.05203)::

    payload = encode(x - m)                         on the sender, whose mirror m is what the receiver holds
    m = what the payload makes of m                 on both

After every payload both ends hold the same bits. Entries that were not sent show up in the next difference: no residual
is kept. float32 payloads send the values of x itself, which replace the old ones, so sent entries are exact; 16-bit
payloads send differences, which are added, because rounding x itself to 16 bits would leave an error of 1/256.

Both ends may also apply the same update to their mirrors if both know it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ssmpi.compress.codec import Codec, CodecOptions
from ssmpi.compress.payload import update

Shards = Sequence[Sequence[slice]]  # of a vector, by fragment and by rank at the other end


class ShardCodecs:
    """A codec, as ``parse`` found it, for each of the ``shards`` of a vector whose layers end at ``borders``. Their
    ``state``, float64, is one array, of as many numbers as ``allocate`` is asked for.
    """

    def __init__(
        self,
        codec: tuple[type[Codec], CodecOptions],
        shards: Shards,
        borders: Sequence[int] = (),
        seed: Sequence[int] = (),
        allocate: Callable[[int], np.ndarray] = np.zeros,
    ) -> None:
        kind, options = codec
        layers = [(part.stop - part.start, _inside(borders, part)) for parts in shards for part in parts]
        sizes = [kind.state_size(options, *layer) for layer in layers]
        self.shards, self.state = shards, allocate(sum(sizes))
        states = np.split(self.state, np.cumsum(sizes)[:-1])
        seeds = np.random.SeedSequence(list(seed)).generate_state(len(sizes)).tolist()
        made = (kind(options, *layer, *own) for layer, own in zip(layers, zip(states, seeds, strict=True), strict=True))
        self.codecs = [[next(made) for _ in parts] for parts in shards]

    def take(self, vector: np.ndarray, fragment: int) -> list[np.ndarray]:
        """Encode a fragment of the vector: a payload for each shard; the vector keeps what is not sent."""
        parts = zip(self.codecs[fragment], self.shards[fragment], strict=True)
        return [codec.take(vector[part]) for codec, part in parts]


class MirrorReceiver:
    """The receiving end: ``copy`` float32 (size,) is its live copy of the vector. Both ends start with equal copies."""

    def __init__(self, shards: Shards, copy: np.ndarray | None = None) -> None:
        self.shards = shards
        self.copy = np.zeros(shards[-1][-1].stop, np.float32) if copy is None else copy

    def shard(self, fragment: int, shard: int = 0) -> np.ndarray:
        """The live copy of a shard."""
        return self.copy[self.shards[fragment][shard]]

    def receive(self, payload: np.ndarray, fragment: int = 0, shard: int = 0) -> int:
        """Apply the payload of a shard and return its number of entries. PayloadError if it is damaged."""
        return update(payload, self.shard(fragment, shard))


class MirrorSender(MirrorReceiver):
    """The sending end, whose ``copy`` equals the receivers'. The first payloads of each fragment are dense. Several may
    share the buffer ``scratch`` float32 (largest shard or more,).
    """

    def __init__(self, codecs: ShardCodecs, copy: np.ndarray | None = None, scratch: np.ndarray | None = None) -> None:
        super().__init__(codecs.shards, copy)
        self._codecs, self._begun = codecs.codecs, set[int]()
        largest = max(part.stop - part.start for parts in self.shards for part in parts)
        self._difference = np.empty(largest, np.float32) if scratch is None else scratch

    def renew(self, fragment: int | None = None) -> None:
        """Make the next payloads dense, of one fragment or of each."""
        self._begun = self._begun - {fragment} if fragment is not None else set()

    def hold(self, vector: np.ndarray, fragment: int) -> None:
        """The receivers hold a fragment of ``vector`` float32 (size,) already: continue from there."""
        self._begun.add(fragment)
        for part in self.shards[fragment]:
            self.copy[part] = vector[part]

    def send(self, vector: np.ndarray, fragment: int = 0) -> list[np.ndarray]:
        """Encode what the receivers lack of a fragment of ``vector`` float32 (size,), and apply it to the own copy. A
        payload for each shard, valid until its codec's next. TrainingError for NaN and infinity.
        """
        dense, payloads = fragment not in self._begun, []
        self._begun.add(fragment)
        for codec, part in zip(self._codecs[fragment], self.shards[fragment], strict=True):
            payloads.append(codec.dense(vector[part]) if dense else self._encode(codec, vector[part], self.copy[part]))
            update(payloads[-1], self.copy[part])
        return payloads

    def _encode(self, codec: Codec, vector: np.ndarray, copy: np.ndarray) -> np.ndarray:
        difference = np.subtract(vector, copy, out=self._difference[: copy.size])
        return codec.take(difference, None if codec.half else vector)


def _inside(borders: Sequence[int], part: slice) -> list[int]:
    """The ends of layers within a part of the vector, relative to its start."""
    return [border - part.start for border in borders if part.start < border < part.stop]
