"""The rows of a keyed table in a file: only those in use, with their keys, wherever they lay. Every PS takes the keys
that hash to it, so that another number of PSs can load them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np

from ssmpi.embedding.key_kernels import ADMITTED, REFUSED, RESERVED, owners_of
from ssmpi.embedding.precision import converted
from ssmpi.runtime.errors import DataError

if TYPE_CHECKING:
    from ssmpi.embedding.keyed_table import KeyedTable
    from ssmpi.embedding.placement import Part

ROWS_AT_A_TIME = 1 << 18  # when loading: a part may be most of the memory of its PS
COUNTS = slice(ADMITTED, REFUSED + 1)  # of a table's head
Room = Callable[[tuple[int, ...], np.dtype], np.ndarray]  # memory for an array to save
Values = tuple[np.ndarray, np.ndarray]  # weights (rows, width) and state (rows, ...) of a part, maybe empty


def reserved(part: Part) -> np.ndarray:
    """The rows of a part that have the ids below RESERVED, int64."""
    return np.arange(len(range(part.first, RESERVED, part.stride)))


def datasets(
    table: KeyedTable, part: Part, values: Values, whole: dict[str, Any], room: Room
) -> Iterator[tuple[str, np.ndarray, dict[str, Any]]]:
    """What to save of a part, as copies in ``room``: ``table-TT-keys-first-stride/weights`` and ``state`` of the
    reserved rows and of those in use, then ``keys``, ``seen`` of the latter, ``candidates`` (keys, 2) with their
    sightings, ``counts``.
    """

    def copied(array: np.ndarray, rows: np.ndarray) -> np.ndarray:
        copy = room((len(rows), *array.shape[1:]), array.dtype)
        return np.take(array, rows, axis=0, out=copy, mode="clip")  # "raise" would make a copy of the copy

    used = table.in_use()
    rows, group = np.concatenate([reserved(part), used]), f"table-{part.table:02}-keys-{part.first}-{part.stride}"
    for name, array in zip(("weights", "state"), values, strict=True):
        if array.size:
            yield f"{group}/{name}", copied(array, rows), whole
    for name, array in (
        ("keys", copied(table.keys, used)), ("seen", copied(table.seen, used)), ("candidates", table.candidates()),
        ("counts", table.head[COUNTS].copy()),
    ):  # fmt: skip
        yield f"{group}/{name}", array, {}


@dataclass(frozen=True)
class Continued:
    """The finished run whose rows another one takes over: after how many ``examples``, and the ``sizes`` of its tables,
    which may be wider now. With ``fresh`` the state of its optimizer is left behind.
    """

    examples: int
    sizes: Sequence[int]
    fresh: bool


class KeyedLoad:
    """What one part takes from saved files, until it has all of its keys. Of a run that is ``continued`` it takes dates
    as if they lay before the first example, and no counts.
    """

    def __init__(self, table: KeyedTable, part: Part, values: Values, continued: Continued | None = None) -> None:
        self._table, self._part, self._values, self._continued = table, part, values, continued
        self._left: set[int] | None = None  # stripes not read yet; None if nothing is known

    @property
    def done(self) -> bool:
        """Whether no other file can have rows of this part."""
        return self._left == set()

    def take(self, path: Path, group: h5py.Group) -> None:
        """Take what belongs here of a saved stripe; DataError if there is no room for it."""
        first, stride = (int(group["weights"].attrs[name]) for name in ("first", "stride"))
        if self._left is None:
            self._left = {self._part.first} if stride == self._part.stride else set(range(stride))
        if first not in self._left:
            return
        self._left.discard(first)
        fixed = np.arange(first, RESERVED, stride)  # ids of its reserved rows
        for source, id_ in enumerate(fixed.tolist()):
            if id_ % self._part.stride == self._part.first:
                self._set(group, np.array([source]), np.array([id_ // self._part.stride]))
        keys = group["keys"][()]
        mine = np.flatnonzero(owners_of(keys, self._part.stride) == self._part.first)
        before = self._continued.examples if self._continued else 0
        rows = self._table.place(keys[mine], group["seen"][()][mine] - before)
        if len(rows) < len(mine):
            why = self._table.no_memory or "raise its keys in embedding.dynamic, or set them back"
            raise DataError(
                f"{path}: {len(mine):,} keys of table {self._part.table} belong to one embedding PS, which has room for"
                f" {len(rows):,} more: {why}"
            )
        for start in range(0, len(mine), ROWS_AT_A_TIME):
            some = slice(start, start + ROWS_AT_A_TIME)
            self._set(group, len(fixed) + mine[some], rows[some])
        self._take_counts(group, first)

    def _take_counts(self, group: h5py.Group, first: int) -> None:
        """Take the sightings of the candidates that hash here; and the counts of a stripe, once in all PSs."""
        found = group["candidates"][()]
        self._table.see(found[owners_of(found[:, 0], self._part.stride) == self._part.first])
        if not self._continued and first % self._part.stride == self._part.first:
            self._table.head[COUNTS] += group["counts"][()]

    def _set(self, group: h5py.Group, source: np.ndarray, target: np.ndarray) -> None:
        """Copy rows of the file, ascending, to rows of the part."""
        if not len(source):
            return
        low, high = int(source[0]), int(source[-1]) + 1
        weights, state = self._values
        if self._continued and self._continued.fresh:
            state[target], state = self._table.initial_state, state[:0]
        for name, array in (("weights", weights), ("state", state)):
            if array.size and name in group:
                array[target] = converted(group[name][low:high][source - low], array.dtype)


@dataclass
class Loading:
    """What of a PS's rows is not loaded yet: how many ``rows`` of static tables, and its ``keyed`` tables by number.
    They are those of the run that is ``continued``, None for a checkpoint of the same run.
    """

    rows: int
    keyed: dict[int, KeyedLoad]
    continued: Continued | None = None

    @property
    def done(self) -> bool:
        """Whether nothing is left to load."""
        return not self.rows and all(each.done for each in self.keyed.values())

    def __str__(self) -> str:
        """What is missing, in words."""
        missing = [f"{self.rows:,} rows"] if self.rows else []
        missing += [f"keys of table {table}" for table, each in self.keyed.items() if not each.done]
        return " and ".join(missing)
