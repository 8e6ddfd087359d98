"""How ``records`` store the rows of an embedding PS. Rows of keys are stored with their keys, because a key may have
another row when they are loaded.
"""

from __future__ import annotations

import numpy as np

from ssmpi.embedding import kernels
from ssmpi.embedding.key_kernels import NOT_FOUND, RESERVED
from ssmpi.embedding.keyed_table import KeyedTable
from ssmpi.embedding.placement import Part
from ssmpi.embedding.table import Arena
from ssmpi.runtime.files.log import log


class RowFormat:
    """Optimizer state and weights of a row, float32, one after the other."""

    compacts = True  # base and increments can be merged: the number of a row says what it is

    def __init__(self, arena: Arena) -> None:
        self._arena, self._state = arena, arena.state.shape[1]
        self.width = self._state + arena.weights.shape[1]

    def all_rows(self) -> np.ndarray:
        """The numbers of the rows that a base holds, int32, ascending."""
        return np.arange(len(self._arena.weights), dtype=np.int32)

    def store(self, out: np.ndarray, rows: np.ndarray) -> None:
        """Write ``rows`` int32 (n,) into ``out`` int32 (n, width)."""
        values = out.view(np.float32)
        values[:, : self._state] = self._arena.state[rows]
        kernels.gather(self._arena.weights, rows, values[:, self._state :])

    def load(self, rows: np.ndarray, words: np.ndarray) -> None:
        """Set ``rows`` int32 (n,) to words int32 (n, width)."""
        values = words.view(np.float32)
        self._arena.weights[rows], self._arena.state[rows] = values[:, self._state :], values[:, : self._state]


class KeyedRowFormat(RowFormat):
    """Before them the number of the row, its key as two words, 0 without one, and when that was seen last, as two."""

    compacts = False
    HEAD = 5

    def __init__(self, arena: Arena) -> None:
        super().__init__(arena)
        self.width += self.HEAD
        self._parts = [(part, arena.keyed[part.table]) for part in arena.parts if part.table in arena.keyed]

    def all_rows(self) -> np.ndarray:
        """Those of ids, and those in use for keys."""
        found = []
        for part in self._arena.parts:
            keyed = self._arena.keyed.get(part.table)
            used = np.concatenate([np.arange(RESERVED), keyed.in_use()]) if keyed else np.arange(part.rows)
            found.append(part.base + used)
        return np.sort(np.concatenate(found)).astype(np.int32)

    def store(self, out: np.ndarray, rows: np.ndarray) -> None:
        """As ``RowFormat``. A row that changes its key meanwhile, at a pause of training, is written without one."""
        out[:, 0], out[:, 1 : self.HEAD] = rows, 0
        keys, seen = (np.zeros(len(rows), np.int64) for _ in range(2))
        for part, table in self._parts:
            mine = slice(*np.searchsorted(rows, (part.base, part.base + part.rows)))
            local = rows[mine] - part.base
            keys[mine], seen[mine] = table.keys[local], table.seen[local]
        super().store(out[:, self.HEAD :], rows)
        for part, table in self._parts:
            mine = slice(*np.searchsorted(rows, (part.base, part.base + part.rows)))
            keys[mine] *= keys[mine] == table.keys[rows[mine] - part.base]
        out[:, 1:3], out[:, 3:5] = keys.view(np.int32).reshape(-1, 2), seen.view(np.int32).reshape(-1, 2)

    def load(self, rows: np.ndarray, words: np.ndarray) -> None:
        """As ``RowFormat``, wherever the keys have their rows now; those that have none get one, if there is room."""
        rows, values = words[:, 0], words[:, self.HEAD :]
        keys, seen = (np.ascontiguousarray(words[:, at : at + 2]).view(np.int64)[:, 0] for at in (1, 3))
        by_number = np.ones(len(rows), bool)
        for part, table in self._parts:
            mine = slice(*np.searchsorted(rows, (part.base + RESERVED, part.base + part.rows)))
            by_number[mine] = False
            held = np.flatnonzero(keys[mine])
            target = _rows_of(part, table, keys[mine][held], seen[mine][held])
            placed = target != NOT_FOUND
            super().load(part.base + target[placed], values[mine][held][placed])
        super().load(rows[by_number], values[by_number])


def _rows_of(part: Part, table: KeyedTable, keys: np.ndarray, seen: np.ndarray) -> np.ndarray:
    """The rows of saved keys int64 (n,), seen at the dates int64 (n,): theirs, or new ones; NOT_FOUND without room."""
    rows = table.resolve(keys, np.zeros(len(keys), np.int64))
    known = np.flatnonzero(rows != NOT_FOUND)
    table.seen[rows[known]] = seen[known]
    new = np.flatnonzero(rows == NOT_FOUND)
    if len(new):
        placed = table.place(keys[new], seen[new])
        rows[new[: len(placed)]] = placed
        if len(placed) < len(new):
            log.warning(
                f"table {part.table}: {len(new) - len(placed):,} keys that were saved during training find no room"
                " beside those of the checkpoint: they begin anew when they are looked up"
            )
    return rows


def row_format_of(arena: Arena) -> RowFormat:
    """The format of an arena's rows."""
    return KeyedRowFormat(arena) if arena.keyed else RowFormat(arena)
