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
        self._ids, self._unknown = np.empty((0, features), np.int32), np.empty(0, np.int64)

    def ids(self, batch: HasKeys, *, again: bool = False) -> np.ndarray:
        """int32 (batch, features), valid until the next call. A batch that is looked up ``again`` does not count."""
        rows, counts = len(batch.keys), self._counts and not again
        if len(self._ids) < rows:
            self._ids = np.empty((rows, self._features), np.int32)
            self._unknown = np.empty(batch.keys.size, np.int64)
        ids = self._ids[:rows]
        missed = key_lookup_kernels.translate(
            self._maps.words, self._servers, (batch.ids, self._plain), (batch.keys, self._keyed), ids, self._unknown,
            counts,
        )  # fmt: skip
        if missed and (counts or not self._all_mapped):
            self._ask(batch.keys, ids, self._unknown[:missed], counts=counts)
        return ids

    def _ask(self, keys: np.ndarray, ids: np.ndarray, unknown: np.ndarray, *, counts: bool) -> None:
        """Ask for the keys at the ``unknown`` positions and fill in their ids."""
        asked, inverse = np.empty((len(unknown), 3), np.int64), np.empty(len(unknown), np.int64)
        starts = key_lookup_kernels.group(keys, unknown, self._servers, asked, inverse)
        if not counts:
            asked[:, 2] = 0
        answers = self._tables.find([asked[a:b] for a, b in pairwise(starts.tolist())], self._thread)
        key_lookup_kernels.fill_in(ids, unknown, np.concatenate(answers), inverse, self._keyed)
