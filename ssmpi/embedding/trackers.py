"""Selects the rows of an embedding PS to save first, as in CPR (Maeng et al., MLSys 2021): the most accessed (MFU), a
sample of the accessed (SSU), or the most changed (SCAR; Qiao et al., ICML 2019).

An access is one lookup of one training example: a row that 40 examples of a batch look up is updated once and has 40
accesses, so that the lost accesses of a row are its lost samples, as PLS counts them. A tracker observes the rows of
every update (``RowArray.set_observer``) and keeps its counts in the memory it is given, which several processes may
share. Call ``select`` before the rows are copied: a concurrent update is then counted for the next save, and none is
missed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from ssmpi.embedding import tracker_kernels
from ssmpi.embedding.placement import Placement

MOST_BYTES = 0.99  # of all rows are in tables subject to selection: six of Kaggle's, seven of Terabyte's (CPR: seven)


@dataclass(frozen=True)
class Scope:
    """The rows of one PS, and which of them are subject to selection; the others are always saved.

    ``parts`` int64 (parts, 3): first row, end, and 1 where all rows are saved.
    """

    parts: np.ndarray

    @property
    def rows(self) -> int:
        """All rows of the PS."""
        return int(self.parts[-1, 1]) if len(self.parts) else 0

    @property
    def whole(self) -> int:
        """How many rows are always saved."""
        return int(np.sum((self.parts[:, 1] - self.parts[:, 0]) * self.parts[:, 2]))

    def most(self, fraction: float) -> int:
        """How many rows may be selected: a ``fraction`` of those subject to selection."""
        return math.ceil(fraction * (self.rows - self.whole))

    def sum(self, values: np.ndarray) -> float:
        """Sum of ``values`` (rows,) over the rows subject to selection."""
        return sum(float(values[first:end].sum(dtype=np.float64)) for first, end, whole in self.parts if not whole)


def largest_tables(cardinalities: tuple[int, ...]) -> set[int]:
    """The fewest tables that together hold ``MOST_BYTES`` of all rows; all rows have the same size."""
    found, rows, wanted = set[int](), 0, MOST_BYTES * sum(cardinalities)
    for table in sorted(range(len(cardinalities)), key=lambda t: (-cardinalities[t], t)):
        if rows >= wanted:
            break
        found.add(table)
        rows += cardinalities[table]
    return found


def scope_of(placement: Placement, server: int) -> Scope:
    """The scope of PS ``server``: the largest tables of the whole model are subject to selection."""
    large, parts = largest_tables(placement.cardinalities), placement.parts_of(server)
    found = [(part.base, part.base + part.rows, part.table not in large) for part in parts]
    return Scope(np.array(found, np.int64).reshape(-1, 3))


@dataclass(frozen=True)
class Selection:
    """Rows to save now, int32 in ascending order. ``share`` is the fraction that they cover of all accesses (MFU),
    sampled accesses (SSU) or squared change (SCAR) since the last save, among the rows subject to selection; 1 if there
    were none. ``left`` is the number of accesses of other rows that are not saved yet, NaN if unknown.
    """

    rows: np.ndarray
    share: float
    left: float = math.nan


class Tracker(Protocol):
    """Decides which rows to save first."""

    def observe(self, rows: np.ndarray, times: np.ndarray | None = None) -> None:
        """Rows int32 (n,) have been updated, for ``times`` int32 (n,) accesses each, one if None. Any thread of any
        process that shares the memory may call it.
        """

    def select(self) -> Selection:
        """The rows to save now, which count as saved from then on; one caller at a time."""

    def forget(self) -> None:
        """Mark all rows as saved."""

    def moved(self, before: np.ndarray, after: np.ndarray) -> None:
        """Rows int64 (n,) have moved, each once, while nobody looks up rows or selects some. What lay where they are
        now, and did not move, is gone.
        """


class MFU:
    """Most frequently used: a saturating uint32 counter for each row, reset when the row is saved.

    ``memory`` is uint8 (``bytes_for``,), of zeros at first.
    """

    def __init__(self, scope: Scope, fraction: float, memory: np.ndarray) -> None:
        self._scope, self._most = scope, scope.most(fraction)
        self.counts = memory.view(np.uint32)

    @staticmethod
    def bytes_for(scope: Scope, fraction: float) -> int:
        """The memory it needs, in bytes."""
        return 4 * scope.rows

    def observe(self, rows: np.ndarray, times: np.ndarray | None = None) -> None:
        """Count each row."""
        tracker_kernels.count(self.counts, rows, _times(rows, times))

    def select(self) -> Selection:
        """The rows with the highest counts, never one that has not been updated."""
        before = self._scope.sum(self.counts)
        rows = _largest(self.counts, self._scope, self._most)
        tracker_kernels.clear(self.counts, rows)
        left = self._scope.sum(self.counts)
        return Selection(rows, _covered(before, left), left)

    def forget(self) -> None:
        """Reset every counter."""
        self.counts[:] = 0

    def moved(self, before: np.ndarray, after: np.ndarray) -> None:
        """Counters go with their rows."""
        counts, self.counts[before] = self.counts[before], 0
        self.counts[after] = counts


class SSU:
    """Sub-sampled used rows: a list of as many rows as are saved. One access in ``period``, chosen at random by
    ``seed``, adds its row; in a full list it replaces a random one. Memory: 4 bytes per list entry and one bit per row
    of the PS, which tells whether the row is in the list.
    """

    HEAD = 32  # bytes

    def __init__(self, scope: Scope, fraction: float, memory: np.ndarray, period: int = 2, seed: int = 0) -> None:
        self._scope, self._period, self._seed = scope, period, seed
        ids = self.HEAD + 4 * scope.most(fraction)
        self._head = memory[: self.HEAD].view(np.int64)
        self._ids, self._listed = memory[self.HEAD : ids].view(np.int32), memory[ids:]

    @classmethod
    def bytes_for(cls, scope: Scope, fraction: float) -> int:
        """The memory it needs, in bytes."""
        return cls.HEAD + 4 * scope.most(fraction) + (scope.rows + 7) // 8

    def observe(self, rows: np.ndarray, times: np.ndarray | None = None) -> None:
        """Sample accesses into the list."""
        tracker_kernels.sample(
            rows, _times(rows, times), self._scope.parts, self._period, self._seed, self._head, self._listed, self._ids
        )

    def select(self) -> Selection:
        """The rows of the list. ``share`` counts the samples whose row was added or was in the list already, of all
        samples: slightly too high, because such a row may have been replaced later.
        """
        _, listed, sampled, known = self._head.tolist()
        out = np.empty(self._scope.whole + len(self._ids), np.int32)
        found = tracker_kernels.take_listed(self._scope.parts, self._head, self._listed, self._ids, out)
        return Selection(out[:found], (listed + known) / sampled if sampled else 1.0)

    def forget(self) -> None:
        """Empty the list."""
        self.select()

    def moved(self, before: np.ndarray, after: np.ndarray) -> None:
        """The list has the new places; what is gone takes those that are left, so that it has each row once."""
        left, gone = np.setdiff1d(before, after), np.setdiff1d(after, before)
        before, after = np.concatenate([before, gone]), np.concatenate([after, left])
        ids, order = self._ids[: self._head[tracker_kernels.LISTED]], np.argsort(before)
        place = np.searchsorted(before[order], ids).clip(max=len(before) - 1)
        known = before[order][place] == ids
        np.bitwise_and.at(self._listed, ids[known] >> 3, ~_bit(ids[known]))
        ids[known] = after[order][place[known]]
        np.bitwise_or.at(self._listed, ids[known] >> 3, _bit(ids[known]))


class SCAR:
    """Selects the rows that have changed most, by the Euclidean distance of each row of ``weights`` float32 (rows,
    width) from its last saved value in ``saved``; None makes a copy. Needs as much memory as the weights.
    """

    def __init__(self, scope: Scope, fraction: float, weights: np.ndarray, saved: np.ndarray | None = None) -> None:
        self._scope, self._most, self._weights = scope, scope.most(fraction), weights
        self._saved = weights.copy() if saved is None else saved

    def observe(self, rows: np.ndarray, times: np.ndarray | None = None) -> None:
        """Nothing: the weights show the change."""

    def select(self) -> Selection:
        """The rows furthest from their copies, never one that has not changed."""
        changes = np.zeros(self._scope.rows, np.float32)
        tracker_kernels.square_changes(self._weights, self._saved, self._scope.parts, changes)
        before = self._scope.sum(changes)
        rows = _largest(changes.view(np.uint32), self._scope, self._most)  # floats >= 0 are ordered as their bits
        tracker_kernels.copy_rows(self._weights, rows, self._saved)
        tracker_kernels.clear(changes, rows)
        return Selection(rows, _covered(before, self._scope.sum(changes)))

    def forget(self) -> None:
        """Copy all weights."""
        self._saved[:] = self._weights

    def moved(self, before: np.ndarray, after: np.ndarray) -> None:
        """Copies go with their rows; what is left behind has not changed."""
        saved, self._saved[before] = self._saved[before], self._weights[before]
        self._saved[after] = saved


@dataclass(frozen=True)
class Tracking:
    """What is counted when rows are updated: accesses for ``kind`` ``mfu`` or ``ssu``, nothing for ``scar`` or
    ``none``. The counts are in memory of the PS, which trainers may map.
    """

    kind: str = "none"
    fraction: float = 1.0
    seed: int = 0

    @property
    def counts(self) -> bool:
        """Whether anything is counted."""
        return self.kind in ("mfu", "ssu")

    def bytes_for(self, scope: Scope) -> int:
        """The memory for the counts, in bytes."""
        kinds: dict[str, type[MFU | SSU]] = {"mfu": MFU, "ssu": SSU}
        return kinds[self.kind].bytes_for(scope, self.fraction) if self.counts else 0

    def over(self, scope: Scope, memory: np.ndarray) -> MFU | SSU:
        """The tracker in ``memory`` uint8 (``bytes_for``,), zeros at first, that observes updates."""
        assert self.counts
        if self.kind == "mfu":
            return MFU(scope, self.fraction, memory)
        return SSU(scope, self.fraction, memory, seed=self.seed)


NOTHING = Tracking()


def _times(rows: np.ndarray, times: np.ndarray | None) -> np.ndarray:
    return np.ones(len(rows), np.int32) if times is None else times


def _largest(keys: np.ndarray, scope: Scope, most: int) -> np.ndarray:
    """The rows with the ``most`` largest keys uint32 (rows,) above 0, and those saved whole: int32, ascending."""
    out = np.empty(scope.whole + most, np.int32)
    return out[: tracker_kernels.largest(keys, scope.parts, most, out)]


def _bit(rows: np.ndarray) -> np.ndarray:
    """That of each row in its byte, uint8."""
    return (1 << (rows & 7)).astype(np.uint8)


def _covered(before: float, left: float) -> float:
    return (before - left) / before if before else 1.0
