"""The base class of custom codecs, whose payload bodies only they understand; users' files derive from it."""

from __future__ import annotations

import zlib
from abc import abstractmethod

import numpy as np

from ssmpi.compress.codec import Codec, Nanoseconds, finite
from ssmpi.compress.payload import CUSTOM, DECODERS, HEADER, seal
from ssmpi.runtime.errors import SettingsError
from ssmpi.runtime.user_code import GUIDE

WORDS = 8  # bytes before a body: the codec's number, and the body's length


class CustomCodec(Codec):
    """Sends the bytes that ``encode`` makes, from which any rank makes the same values by ``decode``. What these do not
    say of a vector is left for the next payload.
    """

    nanoseconds, half = Nanoseconds(push=5.0, send=5.0, receive=2.0), True  # a guess: as mirrors send 16-bit values

    def __init_subclass__(cls) -> None:
        DECODERS[cls._number()] = cls._decoded

    @abstractmethod
    def encode(self, vector: np.ndarray) -> np.ndarray:
        """The bytes to send, uint8 (bytes,), of ``vector`` float32 (size,), all finite, which stays as it is. At most 4
        bytes an entry, and 8 KB for each 65,536 begun.
        """

    @classmethod
    @abstractmethod
    def decode(cls, body: np.ndarray, size: int) -> np.ndarray:
        """The values that ``body`` uint8 (bytes,) stands for, float32 (size,); on every rank the same bits."""

    def take(self, vector: np.ndarray, source: np.ndarray | None = None) -> np.ndarray:
        """As the base class, but for rounding; without a ``source``."""
        finite(vector)
        body = self.encode(vector)
        self.count()
        room = self._payload.size - HEADER - WORDS
        if not (isinstance(body, np.ndarray) and body.dtype == np.uint8 and body.ndim == 1 and body.size <= room):
            raise SettingsError(
                f"encode of '{type(self).__name__}' returned {_shown(body)}, not uint8 (bytes,) of at most {room:,}; "
                f"{GUIDE}"
            )
        payload = self._payload[: HEADER + WORDS + -(-body.size // 4) * 4]
        payload[HEADER:].view(np.uint32)[:2] = self._number(), body.size
        payload[HEADER + WORDS + body.size :] = 0
        payload[HEADER + WORDS :][: body.size] = body
        sent = self._decoded(body, self.size)
        finite(sent)
        vector -= sent
        return seal(payload, CUSTOM, self.size, self.size)

    @classmethod
    def _decoded(cls, body: np.ndarray, size: int) -> np.ndarray:
        values = cls.decode(body, size)
        if not (isinstance(values, np.ndarray) and values.dtype == np.float32 and values.shape == (size,)):
            raise SettingsError(f"decode of '{cls.__name__}' returned {_shown(values)}, not float32 ({size},); {GUIDE}")
        return values

    @classmethod
    def _number(cls) -> int:
        """The same on every rank: the name of a user's own module is a checksum of its text."""
        return zlib.crc32(f"{cls.__module__}:{cls.__qualname__}".encode())


def _shown(found: object) -> str:
    return f"{found.dtype} {found.shape}" if isinstance(found, np.ndarray) else f"a {type(found).__name__}"
