"""From a batch's 64-bit keys to the ids that a lookup routes: in maps that this process has mapped, else by asking."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Protocol

import numpy as np

from ssmpi.compiled.kernel_args import KernelArgs
from ssmpi.embedding import key_lookup_kernels


class KeyTables(Protocol):
    """A transport, as far as keys are concerned. Features are numbered among the keyed ones."""

    @property
    def maps(self) -> Sequence[Sequence[np.ndarray]]:
        """Slots and dates of each server's features in turn, int64, empty arrays if they are not mapped."""

    def find(self, asked: Sequence[np.ndarray], thread: int) -> list[np.ndarray]:
        """The ids int32 (n,) of what is ``asked`` of each server: int64 (n, 3), key, feature and how often it is looked
        up now, 0 if that does not count.
        """


class HasKeys(Protocol):
    """The part of a batch that is needed."""

    @property
    def ids(self) -> np.ndarray:
        """int32 (batch, features with one id)."""

    @property
    def keys(self) -> np.ndarray:
        """int64 (batch, keyed features)."""


class KeyLookup:
    """Of one thread: ``ids`` of a batch of ``features`` features, of which the ``keyed`` have keys. Unless it
    ``counts``, nothing becomes known to a table: what has no row is read from the feature's shared row.
    """

    def __init__(self, tables: KeyTables, features: int, keyed: Sequence[int], thread: int, *, counts: bool) -> None:
        self._tables, self._features, self._thread, self._counts = tables, features, thread, counts
        self._keyed = np.array(keyed, np.int64)
        self._plain = np.array([f for f in range(features) if f not in keyed], np.int64)
        self._servers = len(tables.maps)
        by_feature = [maps[2 * k : 2 * k + 2] for k in range(len(keyed)) for maps in tables.maps]
        self._all_mapped = all(slots.size for slots, _ in by_feature)
        self._maps = KernelArgs((), [array for pair in by_feature for array in pair])
        self._ids, self._room = np.empty((0, features), np.int32), room(0, len(keyed))

    def ids(self, batch: HasKeys) -> np.ndarray:
        """int32 (batch, features), valid until the next call."""
        rows = len(batch.keys)
        if len(self._ids) < rows:
            self._ids, self._room = np.empty((rows, self._features), np.int32), room(rows, len(self._keyed))
        ids = self._ids[:rows]
        missed = key_lookup_kernels.translate(
            self._maps.words, self._room.words, self._servers, (batch.ids, self._plain), (batch.keys, self._keyed), ids,
            self._counts,
        )  # fmt: skip
        if missed and (self._counts or not self._all_mapped):
            self._ask(ids, missed)
        return ids

    def _ask(self, ids: np.ndarray, missed: int) -> None:
        """Ask for the keys that were ``missed`` and fill in their ids."""
        asked, order = np.empty((missed, 3), np.int64), np.empty(missed, np.int64)
        starts = key_lookup_kernels.group(self._room.words, len(ids), self._servers, asked, order)
        if not self._counts:
            asked[:, 2] = 0
        answers = self._tables.find([asked[a:b] for a, b in pairwise(starts.tolist())], self._thread)
        key_lookup_kernels.fill_in(self._room.words, order, np.concatenate(answers), self._keyed, ids)


def room(batch: int, keyed: int) -> KernelArgs:
    """Arrays to look up the keys of a batch of at most so many rows, with so many ``keyed`` features."""
    most, slots = batch * keyed, 1 << max(4, (2 * batch - 1).bit_length())
    kinds = [(most, np.int64), *[(most, np.int32)] * 3, (slots, np.int32), (most, np.int64)]
    return KernelArgs((), [np.empty(size, kind) for size, kind in kinds])
