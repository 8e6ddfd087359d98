"""From a batch's 64-bit keys to the ids that a lookup routes, in maps that this process has mapped. New keys of these
are asked for; those of other PSs are awaited together with their rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

import numpy as np

from ssmpi.embedding import key_lookup_kernels
from ssmpi.runtime.compiled.kernel_args import KernelArgs


class KeyTables(Protocol):
    """A transport, as far as keys are concerned. Features are numbered among the keyed ones."""

    @property
    def maps(self) -> Sequence[Sequence[np.ndarray]]:
        """Head with maps and dates of each server's features in turn, int64, empty arrays if they are not mapped."""

    def find(self, asked: Sequence[np.ndarray], thread: int) -> list[np.ndarray]:
        """The ids int32 (n,) of what is ``asked`` of each server: int64 (n, 3), key, feature and how often it is looked
        up now, 0 if that does not count; in the order of features.
        """


class HasKeys(Protocol):
    """The part of a batch that is needed."""

    @property
    def ids(self) -> Any:
        """int32 (batch, features with one id): there are no lists beside keys."""

    @property
    def keys(self) -> np.ndarray:
        """int64 (batch, keyed features)."""


class Awaited(NamedTuple):
    """Keys whose ids come with their rows: ``asked`` of each PS, as ``KeyTables.find`` has it, and their ``places`` in
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


class KeyLookup:
    """Of one thread: ``ids`` of a batch of ``features`` features, of which the ``keyed`` have keys. Unless it
    ``counts``, nothing becomes known to a table: what has no row is read from the feature's shared row.
    """

    def __init__(self, tables: KeyTables, features: int, keyed: Sequence[int], thread: int, *, counts: bool) -> None:
        self._tables, self._thread, self._counts = tables, thread, counts
        plain = [feature for feature in range(features) if feature not in keyed]
        self._sources = np.empty(features, np.int64)
        self._sources[list(keyed)], self._sources[plain] = np.arange(len(keyed)), -1 - np.arange(len(plain))
        self._servers = len(tables.maps)
        by_feature = [maps[2 * k : 2 * k + 2] for k in range(len(keyed)) for maps in tables.maps]
        self._mapped = [bool(maps and maps[0].size) for maps in tables.maps]
        self._far = [not mapped for mapped in self._mapped]
        self._maps = KernelArgs((), [array for pair in by_feature for array in pair])
        self._rooms = [DistinctIds(0, features, self._servers) for _ in range(2)]  # of two lookups in flight

    def ids(self, batch: HasKeys, *, again: int = 0) -> DistinctIds:
        """Those of a batch, valid until the next call but one. Its first rows, as many as are looked up ``again``, do
        not count.
        """
        rows = len(batch.keys)
        again = min(again, rows) if self._counts else rows
        ids = self._rooms.pop(0)
        if not ids.fits(rows):
            ids = DistinctIds(rows, ids.features, self._servers)
        self._rooms.append(ids)
        missed = key_lookup_kernels.translate(
            self._maps.words, ids.words.words, self._servers, self._sources, (batch.ids, batch.keys), again
        )
        ids.awaited = NOTHING_AWAITED
        if missed and (again < rows or any(self._far)):
            self._ask(ids, missed, again)
        return ids

    def _ask(self, ids: DistinctIds, missed: int, again: int) -> None:
        """Of the keys that were ``missed``, ask for those of mapped PSs, if any rows count, and fill in their ids. The
        others are awaited together with their rows. The first rows do not count ``again``.
        """
        order, asked, starts = ids.asked(missed)
        parts = [asked[a:b] for a, b in pairwise(starts.tolist())]
        if again < len(ids) and any(self._mapped):
            found = self._tables.find(chosen(parts, self._mapped), self._thread)
            for start, answers in zip(starts, found, strict=False):
                key_lookup_kernels.fill_in(ids.words.words, order[start : start + len(answers)], answers)
        if any(self._far):
            if any(self._mapped):
                sizes = np.diff(starts)
                order = order[np.repeat(self._far, sizes)]
                starts = np.concatenate([[0], np.cumsum(sizes * self._far)])
            ids.awaited = Awaited(chosen(parts, self._far), order, starts)


def chosen(parts: Sequence[np.ndarray], which: Sequence[bool]) -> list[np.ndarray]:
    """Those parts, and nothing of the others."""
    return [part if wanted else part[:0] for part, wanted in zip(parts, which, strict=True)]
