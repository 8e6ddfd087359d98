"""All keyed tables of one embedding PS, as messages ask for them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ssmpi.embedding.admission_kernels import numbers_of
from ssmpi.embedding.key_kernels import NOT_FOUND, SHARED_ID
from ssmpi.embedding.keyed_table import KeyCounts, KeyedTable, resolve
from ssmpi.embedding.placement import Placement


class KeyedTables(dict[int, KeyedTable]):
    """The ``tables`` by number, in their order, of a ``server``. What is ``asked`` of them is int64 (n, 3), as
    ``KeyTables.find`` has it; DataError if a feature is not keyed, or they are not in the order of features.
    """

    def __init__(self, tables: Mapping[int, KeyedTable], placement: Placement, server: int) -> None:
        super().__init__(tables)
        self._tables, self._servers = list(tables.values()), placement.servers
        self._bases = np.array([part.base for part in placement.keyed_parts_of(server)], np.int64)
        self._own = np.full_like(self._bases, server)
        self._words = np.concatenate([np.empty(0, np.int64), *(table.args.words for table in self._tables)])

    @property
    def maps(self) -> list[np.ndarray]:
        """Head with maps and dates of each."""
        return [array for table in self._tables for array in (table.maps, table.seen)]

    def find(self, asked: np.ndarray) -> np.ndarray:
        """The ids int32 (n,) of what a trainer asks for."""
        rows, out = resolve(self._tables, self._words, asked), np.empty(len(asked), np.int32)
        numbers_of(rows, asked, self._own, self._servers, SHARED_ID, out)
        return out

    def rows_of(self, asked: np.ndarray, out: np.ndarray) -> None:
        """Write the same as rows of the PS to ``out`` int32 (n,), NOT_FOUND where the shared row serves."""
        numbers_of(resolve(self._tables, self._words, asked), asked, self._bases, 1, NOT_FOUND, out)

    def sweep(self, samples: int) -> np.ndarray:
        """Training pauses after so many ``samples``: the counts of each, int64 (tables, 7), in the order of
        ``KeyCounts``.
        """
        for table in self._tables:
            table.sweep(samples)
        return np.array([table.counts for table in self._tables], np.int64).reshape(-1, len(KeyCounts._fields))
