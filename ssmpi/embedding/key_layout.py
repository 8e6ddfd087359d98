"""The layout of a keyed table's memory on one PS, and its growth steps."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ssmpi.embedding.key_kernels import HEAD, powers

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
        return powers(self.rows)

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
        return WORD * (HEAD + 2 * rows + 2 * powers(rows) * (1 + self.counted))

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
        first = slice(powers(self.first), 2 * powers(self.first))
        found = [slice(0, WORD * HEAD), *self.of_rows(slice(0, self.first)), self.of_map(first)]
        return [*found, self.of_sightings(first)] if self.counted else found
