"""The distinct ids of a batch with keys, some of which come with their rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ssmpi.runtime.compiled.kernel_args import KernelArgs


class Awaited(NamedTuple):
    """Keys whose ids come with their rows: ``asked`` of each PS, as ``Tables.find`` has it, and their ``places`` in
    that order (feature * batch + number), int64 (n,); those of each PS begin at ``starts``, int64 (servers + 1,).
    """

    asked: Sequence[np.ndarray]
    places: np.ndarray
    starts: np.ndarray


NOTHING_AWAITED = Awaited((), *np.empty((2, 0), np.int64))


class DistinctIds:
    """The ids of a batch of ``rows`` rows and so many ``features``, each distinct one once: ``words`` are the room of
    ``key_lookup_kernels``. As an array they are int32 (rows, features). Those that are ``awaited`` are AWAITED.
    """

    def __init__(self, rows: int, features: int, servers: int) -> None:
        self.awaited = NOTHING_AWAITED
        self._most, self._rows, self.features = rows, rows, features
        most, slots = rows * features, 1 << max(4, (4 * rows - 1).bit_length())
        kinds = [(most + 1, np.int64), (most, np.int32), (features, np.int64), (most, np.int32), (slots, np.int32)]
        kinds += [(most, np.int64), (most, np.int64), (3 * most, np.int64), (servers + 1, np.int64)]
        kinds += [(most, np.int32), (features, np.int64)]
        self._arrays = [np.empty(size, kind) for size, kind in kinds]
        self.words = KernelArgs((), self._arrays)

    def fits(self, rows: int) -> bool:
        """Be those of so many rows; whether there is room for them."""
        self._rows = rows
        return rows <= self._most

    def __len__(self) -> int:
        return self._rows

    @property
    def size(self) -> int:
        """Of the array."""
        return self._rows * self.features

    def asked(self, missed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Of so many keys that were missed, ordered by PS, places int64 (missed,), what to ask for, int64 (missed, 3),
        and where each PS's begin, int64 (servers + 1,).
        """
        order, asked, starts = self._arrays[6:9]
        return order[:missed], asked[: 3 * missed].reshape(missed, 3), starts

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        _, found, _, places, *_ = (array[: self.size] for array in self._arrays)
        lines = np.arange(self.features)[:, None] * self._rows
        return found[lines + places.reshape(self.features, self._rows)].T.astype(dtype or np.int32)
