"""The memory of keyed tables, which comes in steps: there are addresses for the most rows from the beginning, so that
nothing ever moves that a trainer maps, and memory for as many as are used, and a quarter more.

A map of twice as many slots lies behind the last one. Who still reads that one finds the keys that it had, and asks for
the others; it is given back at the next pause, when nobody reads it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

import numpy as np

from ssmpi.embedding.key_kernels import HEAD
from ssmpi.runtime.compiled.hash_table import slots_for

if TYPE_CHECKING:
    from ssmpi.embedding.placement import Part, Placement
    from ssmpi.runtime.mpi.shared_memory import Memory


FIRST_ROWS = 1 << 14  # of a table on one PS
MOST_ROWS = 1 << 20  # of a step
WORD, LINE = 8, 64  # bytes


@dataclass(frozen=True)
class KeyLayout:
    """What one PS has beside at most so many ``rows`` of a table, in words: the head and all maps, keys, dates and, if
    they are ``counted``, the sightings of keys without a row, which lie like maps. A map of n slots begins at the n-th.
    """

    rows: int
    counted: bool

    @property
    def first(self) -> int:
        """Rows in the beginning."""
        return min(self.rows, FIRST_ROWS)

    @property
    def slots(self) -> int:
        """Of the largest map."""
        return slots_for(self.rows)

    def step(self, room: int, wanted: int) -> int:
        """The rows after the steps that make room for ``wanted`` ones where ``room`` are there, as far as possible."""
        while room < min(wanted, self.rows):
            room = min(self.rows, room + max(1, min(room // 4, MOST_ROWS)))
        return room

    @cached_property
    def starts(self) -> list[int]:
        """Where head with maps, keys, dates, and sightings begin, and where they end, in words: at cache lines."""
        words = [HEAD + 4 * self.slots, self.rows, self.rows, 4 * self.slots * self.counted]
        line = LINE // WORD
        return np.cumsum([0, *(-(-each // line) * line for each in words)]).tolist()

    @property
    def size(self) -> int:
        """Bytes of addresses, and what is used where all steps come between two pauses."""
        return WORD * self.starts[-1]

    def bytes_at(self, rows: int) -> int:
        """Memory where there is room for so many rows and sightings."""
        return WORD * (HEAD + 2 * rows + 2 * slots_for(rows) * (1 + self.counted))

    def split(self, memory: np.ndarray) -> list[np.ndarray]:
        """Head with maps, keys, dates, and sightings, int64, of a table's memory."""
        words, (_, keys, dates, sightings, _) = memory.view(np.int64), self.starts
        return [words[:keys], words[keys:][: self.rows], words[dates:][: self.rows], words[sightings:]]

    def of_rows(self, rows: slice) -> list[slice]:
        """The bytes of keys and dates of some rows."""
        return [slice(WORD * (start + rows.start), WORD * (start + rows.stop)) for start in self.starts[1:3]]

    def of_map(self, slots: slice) -> slice:
        """The bytes of some slots of the maps."""
        return slice(WORD * (HEAD + 2 * slots.start), WORD * (HEAD + 2 * slots.stop))

    def of_sightings(self, slots: slice) -> slice:
        """The bytes of some slots of the sightings."""
        start = self.starts[3]
        return slice(WORD * (start + 2 * slots.start), WORD * (start + 2 * slots.stop))

    def beginning(self) -> list[slice]:
        """The bytes that are there in the beginning."""
        first = slice(slots_for(self.first), 2 * slots_for(self.first))
        found = [slice(0, WORD * HEAD), *self.of_rows(slice(0, self.first)), self.of_map(first)]
        return [*found, self.of_sightings(first)] if self.counted else found


class KeyMemory:
    """How the keyed tables of a PS lie in its memory of ``size`` bytes: ``places`` has the slice of each."""

    def __init__(self, placement: Placement, server: int) -> None:
        self.places, self.size = dict[int, slice](), 0
        self.layouts = dict[int, KeyLayout]()
        for part in placement.keyed_parts_of(server):
            table, layout = part.table, KeyLayout(part.rows, placement.dynamic[part.table].counts)
            self.layouts[table] = layout
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
    """Allocates memory of a keyed table, as it lies in that of its PS. If that is on a disk, the ``hot`` first rows lie
    in memory all the same.
    """

    @property
    def hot(self) -> int:
        """How many."""

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
    hot: int

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
