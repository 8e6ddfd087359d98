"""The memory of keyed tables, which comes in steps: there are addresses for the most rows from the beginning, so that
nothing ever moves that a trainer maps, and memory for as many as are used, and a quarter more.

A map of twice as many slots lies behind the last one. Who still reads that one finds the keys that it had, and asks for
the others; it is given back at the next pause, when nobody reads it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

if TYPE_CHECKING:
    from ssmpi.embedding.placement import Part, Placement
    from ssmpi.runtime.mpi.shared_memory import Memory


class KeyMemory:
    """How the keyed tables of a PS lie in its memory of ``size`` bytes: ``places`` has the slice of each."""

    def __init__(self, placement: Placement, server: int) -> None:
        self.places, self.size = dict[int, slice](), 0
        self.layouts = {p.table: placement.dynamic[p.table].layout(p.rows) for p in placement.keyed_parts_of(server)}
        for table, layout in self.layouts.items():
            self.places[table] = slice(self.size, self.size + layout.size)
            self.size += layout.size

    def bytes_at(self, *, limit: bool) -> int:
        """Memory that is used when all tables are full, or in the beginning."""
        return sum(layout.bytes_at(layout.rows if limit else layout.first) for layout in self.layouts.values())

    def first_of(self, part: Part) -> int:
        """Rows of a part that are there in the beginning: all, unless its table is keyed."""
        return self.layouts[part.table].first if part.table in self.layouts else part.rows

    def maps(self, memory: np.ndarray, table: int) -> list[np.ndarray]:
        """What a trainer uses of a table: its head with the maps, and dates, int64."""
        map_, _, seen, _ = self.layouts[table].split(memory[self.places[table]])
        return [map_, seen]

    def beginning(self) -> list[slice]:
        """The bytes that are there in the beginning."""
        pairs = ((self.places[table].start, layout) for table, layout in self.layouts.items())
        return [moved(each, start) for start, layout in pairs for each in layout.beginning()]


class Allocator(Protocol):
    """Allocates memory of a keyed table, as it lies in that of its PS."""

    def extend_rows(self, more: slice) -> str:
        """Allocate the values of more rows; why there is no memory for them, empty if there is."""

    def extend(self, more: slice) -> str:
        """Allocate bytes beside them; returns the same."""

    def release(self, less: slice) -> None:
        """Free bytes beside them."""


@dataclass(frozen=True)
class ArenaAllocator:
    """Allocates in the memory of the ``rows`` of a PS, where ``bytes_of`` says where some lie and the table's begin at
    ``base``, and in that of its ``keys``, where the table's begins at byte ``start``.
    """

    rows: Memory
    bytes_of: Callable[[slice], Sequence[slice]]
    base: int
    keys: Memory
    start: int

    def extend_rows(self, more: slice) -> str:
        """As ``Allocator``."""
        return next(filter(None, map(self.rows.extend, self.bytes_of(moved(more, self.base)))), "")

    def extend(self, more: slice) -> str:
        """As ``Allocator``."""
        return self.keys.extend(moved(more, self.start))

    def release(self, less: slice) -> None:
        """As ``Allocator``."""
        self.keys.release(moved(less, self.start))


def moved(some: slice, by: int) -> slice:
    """The same slice from ``by`` on."""
    return slice(by + some.start, by + some.stop)
