"""The ids of rows with list features. A *bag* is the ids of one sparse feature in one row: one, none or many."""

from __future__ import annotations

import numpy as np


class IdRoom:
    """Room for ids int32 (at least ``size``,) and, if ``weighted``, their weights float32, else an empty array. It may
    grow, and then has other arrays.
    """

    def __init__(self, size: int, *, weighted: bool) -> None:
        self.weighted = weighted
        self._make(size)

    def _make(self, size: int) -> None:
        self.ids, self.weights = np.empty(size, np.int32), np.empty(size if self.weighted else 0, np.float32)

    def reserve(self, size: int) -> None:
        """Have room for so many ids; those that are in it are lost if it grows."""
        if size > len(self.ids):
            self._make(size + size // 4)


class Bags:
    """The bags of some rows, in a room that others may share: that of feature ``f`` in row ``r`` is ``ids[starts[b]
    : starts[b + 1]]`` with b = r * features + f; ``starts`` int64 (rows * features + 1,). Each id has a weight, or all
    have 1.
    """

    def __init__(self, room: IdRoom, starts: np.ndarray, features: int) -> None:
        self.room, self.starts, self.features = room, starts, features

    def __len__(self) -> int:
        return (len(self.starts) - 1) // self.features

    @property
    def ids(self) -> np.ndarray:
        """All ids of the room, int32."""
        return self.room.ids

    @property
    def weights(self) -> np.ndarray:
        """All weights of the room, float32; empty if all are 1."""
        return self.room.weights

    @property
    def size(self) -> int:
        """How many ids there are in these bags."""
        return int(self.starts[-1] - self.starts[0])

    def set_zeros(self) -> None:
        """Have one id in each bag: 0, with weight 1."""
        self.room.reserve(len(self.starts))
        self.starts[:] = np.arange(len(self.starts))
        self.room.ids[:], self.room.weights[:] = 0, 1.0

    def column(self, feature: int) -> np.ndarray:
        """The ids of a feature whose bags have one id each, int32 (rows,)."""
        return self.ids[self.starts[feature : -1 : self.features]]

    def __getitem__(self, rows: slice) -> Bags:
        """Some rows, ``start`` to ``stop``, as a view."""
        start, stop, _ = rows.indices(len(self))
        return Bags(self.room, self.starts[start * self.features : stop * self.features + 1], self.features)

    def like(self, rows: int) -> Bags:
        """Fresh bags for so many rows, in a room of their own."""
        room = IdRoom(rows * (self.size // max(1, len(self))), weighted=self.room.weighted)
        return Bags(room, np.zeros(rows * self.features + 1, np.int64), self.features)
