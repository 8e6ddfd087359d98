"""The base of every codec: ``take`` makes a payload from a vector, and the unsent part stays in the vector.

Error feedback memory is separate, as in GRACE (Xu et al., ICDCS 2021): a codec does not know what earlier payloads left
unsent. For gradients, the owner calls ``take`` repeatedly on one vector and adds new gradients in between; that vector,
such as a worker thread's ``PendingGradients`` in ``sync.async_ps``, is the memory. For weights that another rank should
know, it is a ``mirror``.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ssmpi.compress import kernels
from ssmpi.compress.payload import DENSE, HEADER, SPARSE, SPARSE_HALF, most_bytes, payload_bytes, seal
from ssmpi.runtime.errors import DIVERGED, SettingsError, TrainingError
from ssmpi.runtime.settings import EXAMPLES, require, within

BLOCK, TINY = kernels.BLOCK, float(np.finfo(np.float32).smallest_subnormal)


@dataclass(frozen=True)
class CodecOptions:
    """``share`` is the fraction of entries to drop, in [0, 1). A threshold is used for ``threshold_interval`` encodes;
    within the first interval it is also computed at encodes 1, 2, 4, 8, ..., because the first one is far from later
    ones. ``half`` sends values in bfloat16; ``whole`` uses one threshold for all layers.
    """

    share: float = 0.0
    threshold_interval: int = 1000
    half: bool = False
    whole: bool = False

    def __post_init__(self) -> None:
        require(
            0 <= self.share < 1,
            f"codec: the share of the entries that are dropped must be in [0, 1), got {self.share:g}",
        )
        within("threshold_interval", self.threshold_interval, 1, EXAMPLES)


@dataclass(frozen=True, kw_only=True)
class Nanoseconds:
    """Core nanoseconds per entry, as ``python -m jobs.lab exchanges`` measures them: a push at both ends; sending and
    receiving by a mirror.
    """

    push: float
    send: float
    receive: float


class Codec(ABC):
    """A way to send vectors of ``size`` entries, of layers that end at ``borders``. ``state`` float64 is its live
    state, zeros at first, ``state_size`` numbers. A payload is valid until the next one is made.
    """

    takes_share = False  # whether its name is followed by one
    nanoseconds: ClassVar[Nanoseconds]

    def __init__(self, options: CodecOptions, size: int, borders: Sequence[int], state: np.ndarray, seed: int) -> None:
        self.options, self.size, self.state, self._seed = options, size, state, seed
        self._payload = np.empty(most_bytes(size), np.uint8)
        edges = [0, size] if options.whole else sorted({0, *(b for b in borders if 0 < b < size), size})
        self.edges = np.array(edges, np.int64)

    @classmethod
    def state_size(cls, options: CodecOptions, size: int, borders: Sequence[int]) -> int:
        """Numbers in ``state``: encodes so far, by default."""
        return 1

    @classmethod
    @abstractmethod
    def expected_bytes(cls, options: CodecOptions, size: int) -> int:
        """Length of a payload if exactly as many entries are sent as ``options`` ask for."""

    @property
    def half(self) -> bool:
        """Whether values are sent as bfloat16."""
        return self.options.half

    @abstractmethod
    def take(self, vector: np.ndarray, source: np.ndarray | None = None) -> np.ndarray:
        """Encode the entries of ``vector`` float32 (size,) that are to be sent and leave the rest in it: payload and
        rest add up to the old vector, to the last bit. TrainingError for NaN and infinity. With a ``source`` float32
        (size,) the chosen entries are sent with its values instead; ``half`` codecs do not support that.
        """

    def dense(self, vector: np.ndarray) -> np.ndarray:
        """A payload of all entries of ``vector``, float32, whatever the codec; its state does not change. TrainingError
        for NaN and infinity.
        """
        finite(vector)
        payload = self._payload[: payload_bytes(DENSE, self.size, ())]
        payload[HEADER:].view(np.float32)[:] = vector
        return seal(payload, DENSE, self.size, self.size)

    def count(self) -> int:
        """Count one more encode, and return how many came before it."""
        number = int(self.state[0])
        self.state[0] = number + 1
        return number


class SparseCodec(Codec):
    """Sends some entries."""

    takes_share = True

    def __init__(self, options: CodecOptions, size: int, borders: Sequence[int], state: np.ndarray, seed: int) -> None:
        super().__init__(options, size, borders, state, seed)
        self._places = np.empty(min(size, BLOCK) + 1, np.uint16)
        self._values = np.empty(min(size, BLOCK) + 1, np.float32)

    @classmethod
    def expected_bytes(cls, options: CodecOptions, size: int) -> int:
        """As the base class; the same in all blocks."""
        return payload_bytes(SPARSE_HALF if options.half else SPARSE, size, _expected(options, size))

    @abstractmethod
    def select(self, part: np.ndarray, start: int, places: np.ndarray, values: np.ndarray) -> int:
        """Move the entries of a block to send into ``places`` and ``values``, and return their count; the block begins
        at entry ``start``.
        """

    @abstractmethod
    def prepare(self, vector: np.ndarray) -> None:
        """Inspect the whole vector before entries of its blocks are selected."""

    def take(self, vector: np.ndarray, source: np.ndarray | None = None) -> np.ndarray:
        """As the base class, block by block."""
        self.prepare(vector)
        body, at, total, half = self._payload[HEADER:].view(np.uint32), 0, 0, self.options.half
        values = self._values.view(np.uint32)
        for start in range(0, self.size, BLOCK):
            part = vector[start : start + BLOCK]
            found = self.select(part, start, self._places, self._values)
            if half:
                kernels.give_back_rounding(part.view(np.uint32), self._places, values, found)
            if source is not None:
                self._values[:found] = source[start : start + BLOCK][self._places[:found]]
            finite(self._values[:found])
            at = kernels.write_block(body, at, part.size, self._places, values, found, half)
            total += found
        return seal(self._payload[: HEADER + 4 * at], SPARSE_HALF if half else SPARSE, self.size, total)


def _expected(options: CodecOptions, size: int) -> list[int]:
    """Expected entries sent of each block."""
    blocks = [min(BLOCK, size - start) for start in range(0, size, BLOCK)]
    return [block - math.floor(block * options.share) for block in blocks]


def finite(values: np.ndarray) -> None:
    """TrainingError if there is a NaN or an infinity: otherwise a residual would hide it."""
    if not kernels.all_finite(values):
        raise TrainingError(
            f"a gradient or weight to be sent is not finite: {DIVERGED}; lower dense.rate and"
            " embedding.rate, or set schedule.warmup_examples"
        )


def refuse(text: str, known: Sequence[str]) -> SettingsError:
    """Raise SettingsError for an unknown codec."""
    return SettingsError(f"codec is one of {', '.join(known)}, with ':bf16' or ':whole' after a share; got {text!r}")
