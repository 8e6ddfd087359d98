"""Vectors that are known elsewhere, kept so by payloads (EF21; Richtarik et al., NeurIPS 2021, arXiv 2106.05203)::

    payload = encode(x - m)                         on the sender, whose mirror m is what the receiver holds
    m = what the payload makes of m                 on both

Both ends hold the same to the last bit after every payload. What is not sent is in the difference next time: no
residual is kept. Of the entries that are sent, float32 values are those of x and take the place of what was there, so
that they arrive as they are, with the codec ``dense`` all of them; 16-bit values are differences, which are added,
because x itself would not get nearer to 16 bits than 1/256.

Both ends may move what they hold by anything else that both know, alike.
"""

from __future__ import annotations

import numpy as np

from ssmpi.compress.codec import Codec
from ssmpi.compress.payload import update


class Copy:
    """The receiver's end: ``copy`` float32 (size,), live, is what it holds. At first both ends hold the same."""

    def __init__(self, copy: np.ndarray) -> None:
        self.copy = copy

    def receive(self, payload: np.ndarray) -> int:
        """Take in one payload; how many entries it sends. PayloadError if it is damaged."""
        return update(payload, self.copy)


class Mirror(Copy):
    """The sender's end, whose ``copy`` is the same as the receiver's. Several may share ``room`` float32 (size or
    more,).
    """

    def __init__(self, codec: Codec, copy: np.ndarray, room: np.ndarray | None = None) -> None:
        super().__init__(copy)
        self._codec = codec
        self._far = np.empty_like(copy) if room is None else room[: copy.size]

    def send(self, vector: np.ndarray) -> np.ndarray:
        """A payload of what is to be told of float32 (size,), valid until the codec's next; the own copy has taken it
        in. TrainingError for NaN and infinity.
        """
        np.subtract(vector, self.copy, out=self._far)
        payload = self._codec.take(self._far, None if self._codec.half else vector)
        self.receive(payload)
        return payload
