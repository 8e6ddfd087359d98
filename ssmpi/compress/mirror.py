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


class ShardCodecs:
    """A codec, as ``parse`` found it, for each of the ``shards`` of a vector whose layers end at ``borders``. Their
    ``state``, float64, is one array, of as many numbers as ``allocate`` is asked for.
    """

    def __init__(
        self,
        codec: tuple[type[Codec], CodecOptions],
        shards: Sequence[slice],
        borders: Sequence[int] = (),
        seed: Sequence[int] = (),
        allocate: Callable[[int], np.ndarray] = np.zeros,
    ) -> None:
        kind, options = codec
        layers = [(part.stop - part.start, _inside(borders, part)) for part in shards]
        sizes = [kind.state_size(options, *layer) for layer in layers]
        self.shards, self.state = shards, allocate(sum(sizes))
        states = np.split(self.state, np.cumsum(sizes)[:-1])
        seeds = np.random.SeedSequence(list(seed)).generate_state(len(sizes)).tolist()
        each = zip(layers, states, seeds, strict=True)
        self.codecs = [kind(options, *layer, state, number) for layer, state, number in each]

    def take(self, vector: np.ndarray) -> list[np.ndarray]:
        """Encode the vector: a payload for each shard; the vector keeps what is not sent."""
        return [codec.take(vector[part]) for codec, part in zip(self.codecs, self.shards, strict=True)]


class MirrorReceiver:
    """The receiving end: ``copy`` float32 (size,) is its live copy of the vector. Both ends start with equal copies."""

    def __init__(self, shards: Sequence[slice], copy: np.ndarray | None = None) -> None:
        self.shards = shards
        self.copy = np.zeros(shards[-1].stop, np.float32) if copy is None else copy

    def receive(self, payload: np.ndarray, shard: int = 0) -> int:
        """Apply the payload of a shard and return its number of entries. PayloadError if it is damaged."""
        return update(payload, self.copy[self.shards[shard]])


class MirrorSender(MirrorReceiver):
    """The sending end, whose ``copy`` equals the receivers'. The first payloads are dense. Several may share the buffer
    ``scratch`` float32 (largest shard or more,).
    """

    def __init__(self, codecs: ShardCodecs, copy: np.ndarray | None = None, scratch: np.ndarray | None = None) -> None:
        super().__init__(codecs.shards, copy)
        self._codecs, self._dense = codecs.codecs, True
        largest = max(part.stop - part.start for part in self.shards)
        self._difference = np.empty(largest, np.float32) if scratch is None else scratch

    def force_dense(self) -> None:
        """Make the next payloads dense."""
        self._dense = True

    def send(self, vector: np.ndarray) -> list[np.ndarray]:
        """Encode what the receivers lack of ``vector`` float32 (size,), and apply it to the own copy. A payload for
        each shard, valid until its codec's next. TrainingError for NaN and infinity.
        """
        dense, self._dense, payloads = self._dense, False, []
        for codec, part in zip(self._codecs, self.shards, strict=True):
            payloads.append(codec.dense(vector[part]) if dense else self._encode(codec, vector[part], self.copy[part]))
            update(payloads[-1], self.copy[part])
        return payloads

    def _encode(self, codec: Codec, vector: np.ndarray, copy: np.ndarray) -> np.ndarray:
        difference = np.subtract(vector, copy, out=self._difference[: copy.size])
        return codec.take(difference, None if codec.half else vector)


def _inside(borders: Sequence[int], part: slice) -> list[int]:
    """The ends of layers within a part of the vector, relative to its start."""
    return [border - part.start for border in borders if part.start < border < part.stop]
