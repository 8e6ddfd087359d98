"""All keyed tables of one embedding PS, for requests by message."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ssmpi.embedding.admission_kernels import gather_keys, ids_of
from ssmpi.embedding.keyed_table import KeyCounts, KeyedTable, resolve
from ssmpi.embedding.placement import Placement


class KeyedTables(dict[int, KeyedTable]):
    """The ``tables`` by number, in their order, of a ``server``. What is ``asked`` of them is int64 (n, 3), as
    ``Tables.find`` has it; DataError if a feature is not keyed, or they are not in the order of features.
    """

    def __init__(self, tables: Mapping[int, KeyedTable], placement: Placement, server: int) -> None:
        super().__init__(tables)
        self._tables, self._own = list(tables.values()), (server, placement.servers)
        self._bases = np.array([part.base for part in placement.keyed_parts_of(server)], np.int64)
        self._words = np.concatenate([np.empty(0, np.int64), *(table.args.words for table in self._tables)])

    @property
    def maps(self) -> list[np.ndarray]:
        """Head with maps and dates of each."""
        return [array for table in self._tables for array in (table.maps, table.seen)]

    def find(self, asked: np.ndarray) -> np.ndarray:
        """The ids int32 (n,) of what a trainer asks for."""
        rows, out = resolve(self._tables, self._words, asked), np.empty(len(asked), np.int32)
        ids_of(rows, self._own, out)
        return out

    def read(self, asked: np.ndarray, weights: np.ndarray, values: np.ndarray, ids: np.ndarray) -> None:
        """Write the same to ``ids``, and the rows of the keys among the PS's ``weights`` to ``values`` float32
        (n, width), anything where the shared row serves.
        """
        rows = resolve(self._tables, self._words, asked)
        ids_of(rows, self._own, ids)
        gather_keys(weights, rows, asked, self._bases, values)

    def sweep(self, samples: int) -> np.ndarray:
        """Training pauses after so many ``samples``: the counts of each, int64 (tables, 7), in the order of
        ``KeyCounts``.
        """
        for table in self._tables:
            table.sweep(samples)
        return np.array([table.counts for table in self._tables], np.int64).reshape(-1, len(KeyCounts._fields))
