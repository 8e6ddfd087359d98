"""Every entry, rounded to bfloat16: half the bytes. The rounding error is left for the next payload."""

from __future__ import annotations

import numpy as np

from ssmpi.compress.codec import Codec, CodecOptions, Nanoseconds, finite
from ssmpi.compress.payload import DENSE_HALF, HEADER, payload_bytes, seal
from ssmpi.runtime.compiled.bfloat16 import from_bf16, to_bf16


class BF16(Codec):
    """bfloat16, rounded to nearest; the rounding error is below 1/256 of the entry."""

    nanoseconds, half = Nanoseconds(push=1.6, send=1.6, receive=0.4), True

    @classmethod
    def expected_bytes(cls, options: CodecOptions, size: int) -> int:
        """As the base class."""
        return payload_bytes(DENSE_HALF, size, ())

    def take(self, vector: np.ndarray, source: np.ndarray | None = None) -> np.ndarray:
        """As the base class."""
        self.count()
        payload = self._payload[: payload_bytes(DENSE_HALF, self.size, ())]
        payload[-4:] = 0  # where the number of entries is odd
        halves = payload[HEADER:].view(np.uint16)[: self.size]
        to_bf16(vector.view(np.uint32), halves)
        sent = np.empty(self.size, np.uint32)
        from_bf16(halves, sent)
        finite(sent.view(np.float32))
        vector -= sent.view(np.float32)
        return seal(payload, DENSE_HALF, self.size, self.size)
