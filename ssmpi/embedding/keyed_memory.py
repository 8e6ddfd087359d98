"""The memory of keyed tables, which comes in steps: each doubles the rows until there are as many as the limit allows.

Everything has its place from the beginning, so that nothing ever moves; what is not used yet is address space alone.
A larger map is made beside the last one, which others may read until training pauses: they find the older keys there,
and ask for the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

import numpy as np

from ssmpi.embedding.key_kernels import HEAD, powers

if TYPE_CHECKING:
    from ssmpi.comm.shared_memory import Memory

FIRST_ROWS = 1 << 14  # of a table on one PS
WORD = 8


@dataclass(frozen=True)
class KeyLayout:
    """How keys and dates of at most so many ``rows``, the map and, if they are ``counted``, the sightings of candidates
    lie in a table's memory. A step is numbered from 0.
    """

    rows: int
    counted: bool

    @property
    def first(self) -> int:
        """Rows of the first step."""
        return min(self.rows, FIRST_ROWS)

    @cached_property
    def last(self) -> int:
        """The step that has all rows."""
        return max(0, (-(-self.rows // self.first) - 1).bit_length())

    @property
    def slots(self) -> int:
        """Of the first step's map; each step doubles them."""
        return powers(self.first)

    def rows_at(self, step: int) -> int:
        """Rows of a step, those of all before included."""
        return min(self.rows, self.first << step)

    def slots_at(self, step: int) -> slice:
        """The slots of a step among those of all, in words."""
        return slice(2 * self.slots * ((1 << step) - 1), 2 * self.slots * ((2 << step) - 1))

    @cached_property
    def edges(self) -> list[int]:
        """Where keys, dates, the head with the map, and candidates end, in words."""
        slots = self.slots_at(self.last).stop
        return np.cumsum([self.rows, self.rows, HEAD + slots, slots * self.counted]).tolist()

    @property
    def size(self) -> int:
        """Bytes of all."""
        return WORD * self.edges[-1]

    def added(self, step: int) -> list[slice]:
        """The bytes that a step adds to those of the last one; the last one's maps are not needed then."""
        before, slots = self.rows_at(step - 1) if step else 0, self.slots_at(step)
        keys, dates, maps, _ = self.edges
        rows = [slice(start + before, start + self.rows_at(step)) for start in (0, keys)]
        head = [] if step else [slice(dates, dates + HEAD)]
        found = [*rows, *head, *self.maps_at(step)]
        return [slice(WORD * words.start, WORD * words.stop) for words in found]

    def maps_at(self, step: int) -> list[slice]:
        """Where the map of a step is, and its candidates, in words."""
        _, dates, maps, _ = self.edges
        slots = self.slots_at(step)
        starts = [dates + HEAD, *[maps] * self.counted]
        return [slice(start + slots.start, start + slots.stop) for start in starts]

    def bytes_at(self, step: int) -> int:
        """Memory that is used at a step."""
        slots = self.slots_at(step)
        return WORD * (HEAD + 2 * self.rows_at(step) + (slots.stop - slots.start) * (1 + self.counted))


class Growth(Protocol):
    """Makes room for a keyed table."""

    def commit(self, step: int) -> str:
        """Make the memory of a step usable; why that is impossible, "" if it is done."""

    def release(self, step: int) -> None:
        """Give back the maps of an earlier step, which nobody reads any more."""


class AllThere:
    """A table whose memory is there from the beginning."""

    def commit(self, step: int) -> str:
        """As ``Growth``."""
        return ""

    def release(self, step: int) -> None:
        """As ``Growth``."""


class GrowingTable:
    """Makes room in the memory of the ``rows`` of a PS, where ``bytes_of`` says where those of the table lie, and in
    that of its ``keys``, from byte ``start`` on.
    """

    def __init__(
        self, layout: KeyLayout, rows: Memory, bytes_of: Callable[[slice], Sequence[slice]], keys: Memory, start: int
    ) -> None:
        self._layout, self._rows, self._bytes_of, self._keys, self._start = layout, rows, bytes_of, keys, start

    def commit(self, step: int) -> str:
        """As ``Growth``."""
        new = slice(self._layout.rows_at(step - 1), self._layout.rows_at(step))
        for more in moved(self._layout.added(step), self._start):
            if why := self._keys.commit(more):
                return why
        for more in self._bytes_of(new):
            if why := self._rows.commit(more):
                return why
        return ""

    def release(self, step: int) -> None:
        """As ``Growth``."""
        for words in self._layout.maps_at(step):
            self._keys.release(slice(self._start + WORD * words.start, self._start + WORD * words.stop))


def moved(slices: Sequence[slice], start: int) -> list[slice]:
    """The same from ``start`` on."""
    return [slice(start + each.start, start + each.stop) for each in slices]
