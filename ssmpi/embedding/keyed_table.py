"""The keys of one keyed feature on one PS: which row each has, since when it was not seen, and which come and go.

Its rows lie in the PS's arena. Only one process writes here, its PS; trainers of the host read the map and date rows.
``keys`` is the truth and the map follows from it: a process that finds this memory fills the map anew, so that a kill
at any moment leaves whole rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ssmpi.embedding import key_kernels as kernels
from ssmpi.embedding.dynamic_options import DynamicOptions
from ssmpi.embedding.keyed_memory import AllThere, Growth, moved
from ssmpi.files.log import log

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
    """How the keys of a PS lie in its memory of ``size`` bytes: ``places`` has the slice of each keyed table."""

    def __init__(self, options: DynamicOptions, placement: Placement, server: int) -> None:
        self.places, self.size = dict[int, slice](), 0
        self.layouts = {part.table: options.layout(part.rows) for part in placement.keyed_parts_of(server)}
        for table, layout in self.layouts.items():
            self.places[table] = slice(self.size, self.size + layout.size)
            self.size += layout.size

    def maps(self, memory: np.ndarray, table: int) -> list[np.ndarray]:
        """What a trainer uses of a table: its head with the maps, and dates, int64."""
        words = memory[self.places[table]].view(np.int64)
        _, seen, map_, _ = np.split(words, self.layouts[table].edges[:3])
        return [map_, seen]

    def begin(self) -> list[slice]:
        """The bytes of the first steps."""
        return [
            each for table, layout in self.layouts.items() for each in moved(layout.added(0), self.places[table].start)
        ]

    def bytes_at(self, *, limit: bool) -> int:
        """Memory that is used at first, or at the limit."""
        return sum(layout.bytes_at(layout.last if limit else 0) for layout in self.layouts.values())


class KeyedTable:
    """``memory`` uint8 (``options.layout(rows).size``,) of zeros, or ``kept`` from an earlier process; ``values`` are
    the feature's rows: weights float32 (rows, width) and state float32 (rows, groups). Rows beyond those ever used are
    never touched, and there is memory for those of the first step; ``growth`` makes room for more.
    """

    def __init__(
        self, options: DynamicOptions, memory: np.ndarray, values: tuple[np.ndarray, np.ndarray], begin: Beginning, *,
        kept: bool, growth: Growth | None = None,
    ) -> None:  # fmt: skip
        self._layout, words = options.layout(len(values[0])), memory.view(np.int64)
        self.keys, self.seen, self.map, self._sightings = np.split(words, self._layout.edges[:3])
        self.head, self._options, self._values, self._begin = self.map[: kernels.HEAD], options, values, begin
        self._growth, self._no_room = growth or AllThere(), ""
        self._released = 0  # steps whose maps are not used any more
        self.head[kernels.FIRST_SLOTS] = self._layout.slots
        if kept:
            self._refill()

    @property
    def room(self) -> int:
        """Rows that there is memory for."""
        return self._layout.rows_at(int(self.head[kernels.STEP]))

    @property
    def slots(self) -> np.ndarray:
        """The map, int64 (2 * slots,)."""
        return self._slots_at(int(self.head[kernels.STEP]))

    def _slots_at(self, step: int) -> np.ndarray:
        return self.map[kernels.HEAD :][self._layout.slots_at(step)]

    @property
    def _candidates(self) -> np.ndarray:
        """Sightings, int64 (2 * slots,), empty if none are counted."""
        return self._sightings[self._layout.slots_at(int(self.head[kernels.STEP]))]

    def resolve(self, asked: np.ndarray, times: np.ndarray) -> np.ndarray:
        """The rows int64 (n,) of keys int64 (n,) that are looked up ``times`` int64 (n,) now, which may be given one;
        NOT_FOUND where the shared row serves. Keys with 0 times are only looked up.
        """
        self._make_room(np.count_nonzero(times))
        out, options = np.empty(len(asked), np.int64), self._options
        tables = self.head, self.slots, self.keys[: self.room], self.seen, self._candidates
        rule = options.admit_after, options.admit_probability
        kernels.resolve(tables, self._values, asked, times, rule, tuple(self._begin), out)
        return out

    def _make_room(self, more: int) -> None:
        """Grow until there is memory for so many more keys, or none to be had until the next pause."""
        head, layout = self.head, self._layout
        while head[kernels.USED] + more > self.room - kernels.RESERVED and not self._no_room:
            step, before = int(head[kernels.STEP]) + 1, self._candidates
            if step > layout.last:
                return
            if why := self._growth.commit(step):
                self._say(why)
                return
            kernels.refill(self._slots_at(step), self.keys[: head[kernels.END]])
            kernels.recount(self._sightings[layout.slots_at(step)], head, before)
            kernels.grown(self.map, step)

    def _say(self, why: str) -> None:
        """There is no memory for another step."""
        self._no_room = why
        log.warning(
            f"table {self._begin.table}: no memory for more than {self.room - kernels.RESERVED:,} keys ({why}): at the "
            "next pause those not looked up for longest lose their rows, as in a full table. Make room, or lower "
            "embedding.dynamic.keys"
        )

    def sweep(self, now: int) -> None:
        """Training pauses after ``now`` examples, and nobody looks up keys: date what was seen, free what is too old,
        and if there was no room since the last pause, rows not seen for longest, in the order of rows.
        """
        head = self.head
        expired = kernels.age(self.keys[: head[kernels.END]], self.seen, now, self._options.expire_after_examples)
        head[kernels.EXPIRED] += expired
        evicted = self._evict(int(head[kernels.USED]) - expired) if head[kernels.CURSOR] == self.room else 0
        if expired or evicted:
            self._refill()
        head[kernels.CURSOR] = 0
        for step in range(self._released, int(head[kernels.STEP])):
            self._growth.release(step)
        self._released, self._no_room = int(head[kernels.STEP]), ""
        if 2 * head[kernels.COUNTED] > len(self._candidates) // 2 > 0:
            self._candidates[:] = 0
            head[kernels.COUNTED] = 0

    def _refill(self) -> None:
        """Fill the map anew from the keys of the rows."""
        self.head[kernels.USED] = kernels.refill(self.slots, self.keys[: self.head[kernels.END]])

    def _evict(self, used: int) -> int:
        """Free rows until one in FREED is free; how many."""
        room = self.room - kernels.RESERVED
        wanted = max(0, used - (room - max(1, room // FREED)))
        rows = self.in_use()
        oldest = rows[np.argsort(self.seen[rows], kind="stable")[:wanted]]
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
        self._make_room(len(keys))
        first = max(kernels.RESERVED, int(self.head[kernels.END]))
        rows = np.arange(first, min(first + len(keys), self.room))
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
        if self._options.admit_after > 1:
            for key, times in candidates.tolist():
                kernels.count(self._candidates, self.head, key, times)

    @property
    def counts(self) -> KeyCounts:
        """What it holds and did so far."""
        head = self.head.tolist()
        return KeyCounts(
            head[kernels.USED], self.room - kernels.RESERVED, head[kernels.ADMITTED], head[kernels.EXPIRED],
            head[kernels.EVICTED], head[kernels.REFUSED],
        )  # fmt: skip
