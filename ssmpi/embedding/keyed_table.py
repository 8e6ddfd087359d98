"""The keys of one keyed feature on one PS: which row each has, since when it was not seen, and which come and go.

Its rows lie in the PS's arena. Only one process writes here, its PS; trainers of the host read the map and date rows.
``keys`` is the truth and the map follows from it: a process that finds this memory fills the map anew, so that a kill
at any moment leaves whole rows. Memory comes in steps (``keyed_memory``).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from ssmpi.embedding import admission_kernels, key_moves
from ssmpi.embedding import key_kernels as kernels
from ssmpi.embedding.dynamic_options import KeyOptions
from ssmpi.embedding.keyed_memory import Allocator, KeyLayout
from ssmpi.embedding.placement import Placement
from ssmpi.runtime.compiled.hash_table import slots_for
from ssmpi.runtime.compiled.kernel_args import KernelArgs
from ssmpi.runtime.errors import DataError
from ssmpi.runtime.files.log import log

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
    """Of one feature on one PS: keys with rows, the most rows for keys, and how many keys were admitted, expired,
    evicted from the full table, and refused because it was full, each time; rows for keys that there is memory for.
    """

    keys: int
    rows: int
    admitted: int
    expired: int
    evicted: int
    refused: int
    room: int


class KeyedTable:
    """``memory`` uint8 (``KeyLayout.size``,) of zeros, or ``kept`` from an earlier process; ``values`` are
    the feature's rows: weights (rows, width) and state float32 (rows, groups). There is memory for the first of
    them, and ``allocator`` has more; rows beyond those ever used are never touched. ``options.keys`` is the most that
    this PS admits; those of a saved table are loaded as far as there are rows.
    """

    def __init__(
        self, options: KeyOptions, memory: np.ndarray, values: tuple[np.ndarray, np.ndarray], begin: Beginning, *,
        allocator: Allocator, kept: bool,
    ) -> None:  # fmt: skip
        self._layout, self._allocator = KeyLayout(len(values[0]), options.counts), allocator
        self.maps, self.keys, self.seen, self._sightings = self._layout.split(memory)
        self.head = self.maps[: kernels.HEAD]
        self._options, self._begin = options, begin
        numbers = np.array([options.admit_after, begin.seed, begin.table, begin.vector, options.keys])
        fractions = np.array([options.admit_probability, begin.bound, begin.state])
        arrays = self.maps, self.keys, self.seen, self._sightings, *values, numbers, fractions
        self.args, self.like = KernelArgs((), arrays), values[0].dtype.type()  # of ``admission_kernels``
        self.no_memory = ""  # why there is none for another step, since the last pause
        self._released, self._hot = 0, allocator.hot
        self.uses = np.zeros(len(self.keys) if self._hot else 0, np.uint8)  # of each row, lately
        if kept:
            self._refill()
        else:
            first = self._layout.first, slots_for(self._layout.first)
            self.head[kernels.ROOM], self.head[kernels.SLOTS] = first
            self.head[kernels.SIGHTING_SLOTS] = first[1] * options.counts

    def resolve(self, asked: np.ndarray, times: np.ndarray) -> np.ndarray:
        """The rows int64 (n,) of keys int64 (n,) that are looked up ``times`` int64 (n,) now, which may be given one;
        NOT_FOUND where the shared row serves. Keys with 0 times are only looked up.
        """
        return resolve([self], self.args.words, np.column_stack([asked, np.zeros_like(asked), times]))

    def make_room(self, new: int) -> None:
        """Make room for so many ``new`` keys and to count them, as far as limit and memory allow."""
        self._make_room(min(new, max(0, self._options.keys - int(self.head[kernels.USED]))))
        self._make_room_to_count(new)

    def _make_room(self, new: int) -> None:
        """Make room for so many ``new`` keys, as far as limit and memory allow."""
        head, room = self.head, int(self.head[kernels.ROOM])
        wanted = self._layout.step(room, kernels.RESERVED + int(head[kernels.USED]) + new)
        if wanted == room or self.no_memory:
            return
        rows, slots, more = slice(room, wanted), slots_for(wanted), self._allocator
        why = more.extend_rows(rows) or next(filter(None, map(more.extend, self._layout.of_rows(rows))), "")
        if not why and slots > head[kernels.SLOTS]:
            why = more.extend(self._layout.of_map(slice(slots, 2 * slots)))
            if not why:
                kernels.grow_map(self.maps, self.keys[: head[kernels.END]], slots)
        if why:
            self._say(f"rows of more than {room - kernels.RESERVED:,} keys", why)
        else:
            head[kernels.ROOM] = wanted

    def _make_room_to_count(self, new: int) -> None:
        """Make room for sightings of so many ``new`` keys, as far as limit and memory allow."""
        head, before = self.head, int(self.head[kernels.SIGHTING_SLOTS])
        slots = min(self._layout.slots, slots_for(int(head[kernels.COUNTED]) + new))
        if slots <= before or before == 0 or self.no_memory:
            return
        if why := self._allocator.extend(self._layout.of_sightings(slice(slots, 2 * slots))):
            self._say(f"counts of more than {before // 2:,} new keys", why)
        else:
            kernels.grow_sightings(self._sightings, head, slots)

    def _say(self, what: str, why: str) -> None:
        """There is no memory for another step; the next pause tries again."""
        self.no_memory = why
        log.warning(
            f"table {self._begin.table}: no memory for {what} ({why}): until the next pause the table counts as full:"
            " new keys share a row, and the pause frees the rows that were unused for longest. Free some memory, or"
            " lower keys in [embedding.dynamic]"
        )

    def sweep(self, now: int) -> None:
        """Training pauses after ``now`` examples, and nobody looks up keys: date what was seen, free what is too old,
        and if there was no room since the last pause, rows not seen for longest; among those the least keys, so that
        it does not matter where rows lie.
        """
        head = self.head
        most = self._options.expire_after_examples
        expired = kernels.age(self.keys[: head[kernels.END]], self.seen, self.uses, now, most)
        head[kernels.EXPIRED] += expired
        used = int(head[kernels.USED]) - expired
        full = head[kernels.CURSOR] == head[kernels.ROOM] or used > self._options.keys
        evicted = self._evict(used) if full else 0
        if expired or evicted:
            self._refill()
        head[kernels.CURSOR] = 0
        all_counted = head[kernels.SIGHTING_SLOTS] == self._layout.slots or self.no_memory
        if all_counted and 2 * head[kernels.COUNTED] >= len(self._candidates) // 2:
            self._candidates[:] = 0
            head[kernels.COUNTED] = 0
        self._release()

    def _release(self) -> None:
        """Give back smaller maps and their sightings, which nobody reads any more, and ask for memory again."""
        slots, sightings = int(self.head[kernels.SLOTS]), int(self.head[kernels.SIGHTING_SLOTS])
        if slots + sightings > self._released:
            self._allocator.release(self._layout.of_map(slice(0, slots)))
            self._allocator.release(self._layout.of_sightings(slice(0, sightings)))
        self._released, self.no_memory = slots + sightings, ""

    def move_used(
        self, values: tuple[np.ndarray, np.ndarray, np.ndarray], read: Callable[[np.ndarray], None], deadline: float
    ) -> np.ndarray:
        """Move rows that are used most to memory, with their ``values``: weights, state and clocks, until a time of the
        monotonic clock. Which did, as ``key_moves.planned``. ``read`` is told rows int64 (n,) that are needed soon.
        """
        moves, done = self._moves(), 0
        read(moves[: key_moves.AT_A_TIME, 0])
        while done < max(1, len(moves)) and time.monotonic() < deadline:  # without any too, so that it is compiled
            some, coming = (moves[k : k + key_moves.AT_A_TIME] for k in (done, done + key_moves.AT_A_TIME))
            read(coming[:, 0])
            key_moves.move(some, self.keys, self.seen, self.uses, *values)
            done += key_moves.AT_A_TIME
        if len(moves[:done]):
            self._refill()
        return moves[:done]

    def _moves(self) -> np.ndarray:
        """Which rows are to move, as ``key_moves.planned``."""
        head, stop = self.head, int(self.head[kernels.END])
        rising, sinking = key_moves.chosen(self.keys[:stop], self.uses, self._hot, key_moves.MOST)
        spare = key_moves.first_free(self.keys[: head[kernels.ROOM]], self._hot)
        if len(rising) and self.keys[sinking[0]] != 0:
            if spare == head[kernels.ROOM]:
                return np.empty((0, 2), np.int64)
            head[kernels.END] = max(stop, spare + 1)
        return key_moves.planned(self.keys, rising, sinking, spare)

    def _refill(self) -> None:
        """Fill the map anew from the keys of the rows."""
        self.head[kernels.USED] = kernels.refill(kernels.slots_of(self.maps), self.keys[: self.head[kernels.END]])

    def _evict(self, used: int) -> int:
        """Free rows until one in FREED is free; how many."""
        room = min(int(self.head[kernels.ROOM]) - kernels.RESERVED, self._options.keys)
        wanted = max(0, used - (room - max(1, room // FREED)))
        rows = self.in_use()
        oldest = rows[np.lexsort((self.keys[rows], self.seen[rows]))[:wanted]]
        self.keys[oldest] = 0
        if self.uses.size:
            self.uses[oldest] = 0
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
        rows = np.arange(first, min(first + len(keys), int(self.head[kernels.ROOM])))
        self.seen[rows], self.keys[rows] = seen[: len(rows)], keys[: len(rows)]
        self.head[kernels.END] = first + len(rows)
        self._refill()
        return rows

    @property
    def _candidates(self) -> np.ndarray:
        """Keys and sightings in the slots that count, int64; empty if none are counted."""
        slots = int(self.head[kernels.SIGHTING_SLOTS])
        return self._sightings[2 * slots : 4 * slots]

    def candidates(self) -> np.ndarray:
        """Keys without a row and how often each was looked up, int64 (n, 2)."""
        pairs = self._candidates.reshape(-1, 2)
        return pairs[pairs[:, 1] > 0]

    def see(self, candidates: np.ndarray) -> None:
        """Add such sightings, of keys that are counted."""
        if self._options.counts:
            self._make_room_to_count(len(candidates))
            for key, times in candidates.tolist():
                admission_kernels.count(self._candidates, self.head, key, times)

    @property
    def initial_state(self) -> float:
        """Of the optimizer, for a row that begins."""
        return self._begin.state

    @property
    def counts(self) -> KeyCounts:
        """What it holds and did so far."""
        head, most = self.head.tolist(), min(len(self.keys) - kernels.RESERVED, self._options.keys)
        return KeyCounts(
            head[kernels.USED], most, head[kernels.ADMITTED], head[kernels.EXPIRED],
            head[kernels.EVICTED], head[kernels.REFUSED], head[kernels.ROOM] - kernels.RESERVED,
        )  # fmt: skip


def resolve(tables: Sequence[KeyedTable], words: np.ndarray, asked: np.ndarray) -> np.ndarray:
    """The rows int64 (n,) of what is ``asked`` of some ``tables``, int64 (n, 3): key, number of the table, and how
    often it is looked up now; NOT_FOUND where the shared row serves. DataError unless they are in the order of tables.
    ``words`` are those of all ``args``.
    """
    rows, short = np.empty(len(asked), np.int64), np.empty(len(tables), np.int64)
    missed = admission_kernels.look_up(words, asked, rows, short, tables[0].like)
    if missed < 0:
        raise DataError(f"asked for keys of features other than the {len(tables)} keyed ones, in their order")
    if missed:
        for table in np.flatnonzero(short).tolist():
            tables[table].make_room(int(short[table]))
        admission_kernels.admit(words, asked, rows, tables[0].like)
    return rows


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
        admission_kernels.ids_of(rows, *self._own, out)
        return out

    def read(self, asked: np.ndarray, ids: np.ndarray) -> np.ndarray:
        """Write the same to ``ids``; the rows of the keys among all of the PS, int32 (n,), any of their table where the
        shared row serves.
        """
        rows, places = resolve(self._tables, self._words, asked), np.empty(len(asked), np.int32)
        admission_kernels.ids_of(rows, *self._own, ids)
        admission_kernels.places_of(rows, asked, self._bases, places)
        return places

    def sweep(self, samples: int) -> np.ndarray:
        """Training pauses after so many ``samples``: the counts of each, int64 (tables, 7), in the order of
        ``KeyCounts``.
        """
        for table in self._tables:
            table.sweep(samples)
        return np.array([table.counts for table in self._tables], np.int64).reshape(-1, len(KeyCounts._fields))
