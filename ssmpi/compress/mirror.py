"""Copies of vectors on other ranks, kept up to date by payloads (EF21; Richtarik et al., NeurIPS 2021, arXiv
2106.05203)::

    payload = encode(x - m)                         on the sender, whose mirror m is what the receiver holds
    m = what the payload makes of m                 on both

After every payload both ends hold the same bits. Entries that were not sent show up in the next difference: no residual
is kept. float32 payloads send the values of x itself, which replace the old ones, so sent entries are exact; 16-bit
payloads send differences, which are added, because rounding x itself to 16 bits would leave an error of 1/256.

Both ends may also apply the same update to their copies if both know it.
"""

from __future__ import annotations

import numpy as np

from ssmpi.compress.codec import Codec
from ssmpi.compress.payload import update


class Copy:
    """The receiving end: ``copy`` float32 (size,) is its live copy. Both ends start with equal copies."""

    def __init__(self, copy: np.ndarray) -> None:
        self.copy = copy

    def receive(self, payload: np.ndarray) -> int:
        """Apply one payload and return its number of entries. PayloadError if it is damaged."""
        return update(payload, self.copy)


class Mirror(Copy):
    """The sending end, whose ``copy`` equals the receiver's. Several may share the buffer ``scratch`` float32
    (size or more,).
    """

    def __init__(self, codec: Codec, copy: np.ndarray, scratch: np.ndarray | None = None) -> None:
        super().__init__(copy)
        self._codec = codec
        self._far = np.empty_like(copy) if scratch is None else scratch[: copy.size]

    def send(self, vector: np.ndarray) -> np.ndarray:
        """Encode what the receiver lacks of ``vector`` float32 (size,), and apply it to the own copy. The payload is
        valid until the codec's next. TrainingError for NaN and infinity.
        """
        np.subtract(vector, self.copy, out=self._far)
        payload = self._codec.take(self._far, None if self._codec.half else vector)
        self.receive(payload)
        return payload
