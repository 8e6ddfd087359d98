"""The keys of one keyed feature on one PS: which row each has, since when it was not seen, and which come and go.

Its rows lie in the PS's arena. Only one process writes here, its PS; trainers of the host read the map and date rows.
``keys`` is the truth and the map follows from it: a process that finds this memory fills the map anew, so that a kill
at any moment leaves whole rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ssmpi.embedding import key_kernels as kernels
from ssmpi.embedding.dynamic_options import KeyOptions

if TYPE_CHECKING:
    from ssmpi.embedding.placement import Placement

FREED = 8  # a full table frees one row in so many


class Beginning(NamedTuple):
    """What initial rows are a function of, with the key: seed, table, floats of the vector, bound of its values, and
    initial state of the optimizer.
    """

    seed: int
    table: int
    vector: int
    bound: float
    state: float


class KeyCounts(NamedTuple):
    """Of one feature on one PS: keys with rows, rows for keys, and how many keys were admitted, expired, evicted from
    the full table, and refused because it was full, each time.
    """

    keys: int
    rows: int
    admitted: int
    expired: int
    evicted: int
    refused: int


class KeyMemory:
    """How the maps of a PS lie in its memory of ``size`` bytes: ``places`` has the slice of each keyed table."""

    def __init__(self, placement: Placement, server: int) -> None:
        self.places, self.size = dict[int, slice](), 0
        self._rows = {part.table: part.rows for part in placement.keyed_parts_of(server)}
        for part in placement.keyed_parts_of(server):
            end = self.size + placement.dynamic[part.table].bytes_beside(part.rows)
            self.places[part.table], self.size = slice(self.size, end), end

    def maps(self, memory: np.ndarray, table: int) -> list[np.ndarray]:
        """What a trainer uses of a table: its slots and dates, int64."""
        words = memory[self.places[table]].view(np.int64)
        *_, seen, slots, _ = np.split(words, edges_of(self._rows[table]))
        return [slots, seen]


def edges_of(rows: int) -> np.ndarray:
    """Where head, keys, dates and slots of a table end in its memory, in words; candidates follow."""
    return np.cumsum([kernels.HEAD, rows, rows, 2 * kernels.powers(rows)])


class KeyedTable:
    """``memory`` uint8 (``options.bytes_beside(rows)``,) of zeros, or ``kept`` from an earlier process; ``values`` are
    the feature's rows: weights float32 (rows, width) and state float32 (rows, groups). Rows beyond those ever used are
    never touched.
    """

    def __init__(
        self, options: KeyOptions, memory: np.ndarray, values: tuple[np.ndarray, np.ndarray], begin: Beginning, *,
        kept: bool,
    ) -> None:  # fmt: skip
        rows, words = len(values[0]), memory.view(np.int64)
        self.head, self.keys, self.seen, self.slots, self._candidates = np.split(words, edges_of(rows))
        self._options, self._values, self._begin = options, values, begin
        if kept:
            self._refill()

    def resolve(self, asked: np.ndarray, times: np.ndarray) -> np.ndarray:
        """The rows int64 (n,) of keys int64 (n,) that are looked up ``times`` int64 (n,) now, which may be given one;
        NOT_FOUND where the shared row serves. Keys with 0 times are only looked up.
        """
        out, options = np.empty(len(asked), np.int64), self._options
        tables = self.head, self.slots, self.keys, self.seen, self._candidates
        rule = options.admit_after, options.admit_probability
        kernels.resolve(tables, self._values, asked, times, rule, tuple(self._begin), out)
        return out

    def sweep(self, now: int) -> None:
        """Training pauses after ``now`` examples, and nobody looks up keys: date what was seen, free what is too old,
        and if there was no room since the last pause, rows not seen for longest; among those the least keys, so that
        it does not matter where rows lie.
        """
        head = self.head
        expired = kernels.age(self.keys[: head[kernels.END]], self.seen, now, self._options.expire_after_examples)
        head[kernels.EXPIRED] += expired
        evicted = self._evict(int(head[kernels.USED]) - expired) if head[kernels.CURSOR] == len(self.keys) else 0
        if expired or evicted:
            self._refill()
        head[kernels.CURSOR] = 0
        if 2 * head[kernels.COUNTED] > len(self._candidates) // 2 > 0:
            self._candidates[:] = 0
            head[kernels.COUNTED] = 0

    def _refill(self) -> None:
        """Fill the map anew from the keys of the rows."""
        self.head[kernels.USED] = kernels.refill(self.slots, self.keys[: self.head[kernels.END]])

    def _evict(self, used: int) -> int:
        """Free rows until one in FREED is free; how many."""
        room = len(self.keys) - kernels.RESERVED
        wanted = max(0, used - (room - max(1, room // FREED)))
        rows = self.in_use()
        oldest = rows[np.lexsort((self.keys[rows], self.seen[rows]))[:wanted]]
        self.keys[oldest] = 0
        self.head[kernels.EVICTED] += len(oldest)
        return len(oldest)

    def in_use(self) -> np.ndarray:
        """The rows of keys, int64, ascending."""
        return kernels.RESERVED + np.flatnonzero(self.keys[kernels.RESERVED : self.head[kernels.END]])

    def place(self, keys: np.ndarray, seen: np.ndarray) -> np.ndarray:
        """Give the next rows to keys int64 (n,) of a saved table, seen at the dates int64 (n,), whose values the caller
        sets: their rows. Fewer than asked for if there is no room.
        """
        first = max(kernels.RESERVED, int(self.head[kernels.END]))
        rows = np.arange(first, min(first + len(keys), len(self.keys)))
        self.seen[rows], self.keys[rows] = seen[: len(rows)], keys[: len(rows)]
        self.head[kernels.END] = first + len(rows)
        self._refill()
        return rows

    def candidates(self) -> np.ndarray:
        """Keys without a row and how often each was looked up, int64 (n, 2)."""
        pairs = self._candidates.reshape(-1, 2)
        return pairs[pairs[:, 1] > 0]

    def see(self, candidates: np.ndarray) -> None:
        """Add such sightings, of keys that are counted."""
        if self._options.counts:
            for key, times in candidates.tolist():
                kernels.count(self._candidates, self.head, key, times)

    @property
    def initial_state(self) -> float:
        """Of the optimizer, for a row that begins."""
        return self._begin.state

    @property
    def counts(self) -> KeyCounts:
        """What it holds and did so far."""
        head = self.head.tolist()
        return KeyCounts(
            head[kernels.USED], len(self.keys) - kernels.RESERVED, head[kernels.ADMITTED], head[kernels.EXPIRED],
            head[kernels.EVICTED], head[kernels.REFUSED],
        )  # fmt: skip
