"""Keyed tables whose memory comes in steps equal those that have all of it from the beginning: over any stream, with a
kill at each point of a growth, and where there is no memory for a step.
"""

import contextlib
import mmap
import os
import signal
import time
from functools import partial
from unittest.mock import patch

import numpy as np
import pytest
from faults import Kill, KilledError
from hypothesis import given
from hypothesis import strategies as st
from oracle import initial_row
from rows import row_options
from test_keyed_table import BATCHES, BEGIN, WIDTH, check_values, was_seen

from ssmpi.embedding import key_kernels as kernels
from ssmpi.embedding import keyed_memory
from ssmpi.embedding.dynamic_options import DynamicOptions
from ssmpi.embedding.keyed_memory import KeyLayout
from ssmpi.embedding.keyed_table import KeyedTable
from ssmpi.embedding.placement import place
from ssmpi.embedding.table import Arena
from ssmpi.runtime.compiled.hash_table import find, slots_for
from ssmpi.runtime.mpi import rank_memory
from ssmpi.runtime.mpi.rank_memory import MemoryFile, Origin, ProcessMemory

ROWS = 34
POISON = 0xA5  # what lies where no memory was asked for: reading it shows, and writing it too


class Steps:
    """Memory of a table in steps; ``says`` why there is none for another one."""

    hot = 0

    def __init__(self, options, rows=ROWS):
        self.layout, self.rows, self.says = KeyLayout(rows, options.counts), rows, ""
        self.beside = np.full(self.layout.size, POISON, np.uint8)
        self.values = [np.frombuffer(bytes([POISON]) * (4 * rows * n), np.float32).copy() for n in (WIDTH, 2)]
        self.values = [values.reshape(rows, -1) for values in self.values]
        self.there, self.rows_there = np.zeros(self.layout.size, bool), np.arange(rows) < self.layout.first
        for some in self.layout.beginning():
            self.beside[some], self.there[some] = 0, True

    def table(self, options, *, kept=False):
        return KeyedTable(options, self.beside, tuple(self.values), BEGIN, allocator=self, kept=kept)

    def extend_rows(self, more):
        self.rows_there[more] |= not self.says
        return self.says

    def extend(self, more):
        self.there[more] |= not self.says
        return self.says

    def release(self, less):
        self.there[less], self.beside[less] = False, POISON

    def check(self):
        """Nothing was written where there is no memory."""
        assert (self.beside[~self.there] == POISON).all()
        assert all((each[~self.rows_there].view(np.uint8) == POISON).all() for each in self.values)


def contents(table, values):
    """Dates and values by key, sightings by key, and what was counted; a call that is repeated looks up once more."""
    rows = table.in_use()
    dates = [kernels.SEEN if was_seen(date) else date for date in table.seen[rows].tolist()]
    keys = table.keys[rows].tolist()
    held = {key: (date, *values[0][r], *values[1][r]) for key, date, r in zip(keys, dates, rows, strict=True)}
    return held, dict(table.candidates().tolist()), table.counts._replace(room=0)


def asked(pairs):
    return (np.array(column, np.int64) for column in zip(*pairs, strict=True))


@given(BATCHES, st.integers(1, 3), st.sampled_from([0, 20]), st.sampled_from([3, 8, ROWS - 2]))
def test_a_growing_table_is_one_that_has_all_from_the_beginning(stream, after, most, limit):
    options = DynamicOptions(keys=limit, admit_after=after, expire_after_examples=most)
    whole = Steps(options, limit + 2)
    tables, now = [whole.table(options)], 0
    with patch.object(keyed_memory, "FIRST_ROWS", 3):
        grown = Steps(options, limit + 2)
        tables.append(grown.table(options))
        for each in stream:
            if each == "kill":
                tables = [memory.table(options, kept=True) for memory in (whole, grown)]
            elif isinstance(each, int):
                now += each
                for table in tables:
                    table.sweep(now)
            elif each:
                found = [table.resolve(*asked(each)) >= 0 for table in tables]
                np.testing.assert_array_equal(*found)
            assert contents(tables[0], whole.values) == contents(tables[1], grown.values)
            grown.check()
    for row in tables[1].in_use():
        check_values(grown.values, row, int(tables[1].keys[row]))


@pytest.mark.parametrize("after", [1, 2])
def test_steps_add_a_quarter_and_give_back_smaller_maps(after):
    options, limit = DynamicOptions(keys=1_000, admit_after=after), 1_002
    with patch.object(keyed_memory, "FIRST_ROWS", 16):
        memory = Steps(options, limit)
        table, rooms = memory.table(options), [16]
        for keys in np.split(np.arange(1, 1_001), 500):
            for _ in range(after):
                look_up(table, keys)()
            if table.head[kernels.ROOM] != rooms[-1]:
                rooms.append(int(table.head[kernels.ROOM]))
                assert rooms[-1] == min(limit, rooms[-2] + rooms[-2] // 4)
        assert rooms[-1] == limit
        assert len(rooms) > 10
        assert memory.there.sum() > memory.layout.bytes_at(limit)
        table.sweep(10)
        memory.check()
        assert memory.there.sum() == memory.layout.bytes_at(limit)
        assert (table.resolve(np.arange(1, 1_001), np.zeros(1_000, np.int64)) >= 0).all()


def test_who_still_reads_the_last_map_finds_what_was_there():
    options = DynamicOptions(keys=100)
    with patch.object(keyed_memory, "FIRST_ROWS", 8):
        memory = Steps(options, 102)
        table = memory.table(options)
        rows = table.resolve(np.arange(1, 7), np.ones(6, np.int64))
        before = kernels.slots_of(table.maps)
        table.resolve(np.arange(7, 90), np.ones(83, np.int64))
        assert len(kernels.slots_of(table.maps)) > len(before)
        assert [find(before, key) for key in range(1, 9)] == [*rows, -1, -1]


POINTS = (
    (Steps, "extend_rows", 1), (Steps, "extend", 1), (Steps, "extend", 2), (Steps, "extend", 3), (Steps, "release", 1),
    (Steps, "release", 2), (kernels, "grow_map", 1), (kernels, "grow_sightings", 1),
)  # fmt: skip


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("point", POINTS, ids=lambda point: f"{point[1]} {point[2]}")
def test_a_kill_at_any_point_of_a_growth_changes_nothing(point, after):
    """Whoever finds the memory repeats the lookups, or the pause, that were under way."""
    options, limit, kills = DynamicOptions(keys=120, admit_after=2), 122, 0
    generator, whole = np.random.default_rng(1), Steps(options, limit)
    tables = [whole.table(options)]
    with patch.object(keyed_memory, "FIRST_ROWS", 4):
        memory = Steps(options, limit)
        tables.append(memory.table(options))
        for number in range(30):
            keys = np.unique(generator.integers(1, 120, 12))
            steps = [look_up(table, keys) if number % 4 else partial(table.sweep, number) for table in tables]
            steps[0]()
            with Kill(*point, after=after):
                try:
                    steps[1]()
                    killed = False
                except KilledError:
                    killed = True
            if killed:
                kills, tables[1] = kills + 1, memory.table(options, kept=True)
                (look_up(tables[1], keys) if number % 4 else partial(tables[1].sweep, number))()
            assert contents(tables[0], whole.values) == contents(tables[1], memory.values)
            memory.check()
    assert kills >= 3
    for row in tables[1].in_use():
        check_values(memory.values, row, int(tables[1].keys[row]))


def look_up(table, keys):
    """To call: look up each of the keys once."""
    return partial(table.resolve, keys, np.ones(len(keys), np.int64))


@pytest.mark.parametrize("after", [1, 2])
def test_without_memory_for_a_step_a_table_is_as_if_full_until_there_is_some(after, caplog):
    options = DynamicOptions(keys=100, admit_after=after)
    with patch.object(keyed_memory, "FIRST_ROWS", 18):
        memory = Steps(options, 102)
        table = memory.table(options)
        memory.says = "the file system is full"
        for _ in range(after):
            look_up(table, np.arange(1, 31))()
        assert (table.counts.keys, table.counts.room, table.counts.refused) == (16, 16, 14)
        table.sweep(100)
        assert (table.counts.keys, table.counts.evicted) == (14, 2), "an eighth is free"
        (warning,) = caplog.records
        assert "table 4: no memory for rows of more than 16 keys (the file system is full)" in warning.getMessage()
        memory.says = ""
        for _ in range(after):
            look_up(table, np.arange(1, 31))()
        assert (table.counts.keys, table.counts.refused) == (30, 14)
        memory.check()


def test_when_too_many_keys_are_counted_all_counts_begin_anew_at_a_pause():
    options = DynamicOptions(keys=6, admit_after=2)
    table = Steps(options, 8).table(options)
    look_up(table, np.arange(1, 12))()
    assert len(table.candidates()) == 8, "half of the slots"
    table.sweep(5)
    look_up(table, np.array([11]))()
    assert dict(table.candidates().tolist()) == {11: 1}
    assert look_up(table, np.array([11]))() >= 0


@given(st.integers(3, 10_000_000), st.integers(0, 30), st.booleans())
def test_each_step_has_its_place(rows, steps, counted):
    """Maps of all sizes and the largest lie beside each other, and beside keys and dates."""
    layout, room = KeyLayout(rows, counted), 0
    room = layout.first
    for _ in range(steps):
        room = layout.step(room, room + 1)
    slots = slots_for(room)
    places = [*layout.of_rows(slice(0, rows)), slice(0, 8 * kernels.HEAD), layout.of_map(slice(slots, 2 * slots))]
    places += [layout.of_sightings(slice(slots, 2 * slots))] if counted else []
    ordered = sorted(places, key=lambda place: place.start)
    assert all(one.stop <= other.start for one, other in zip(ordered, ordered[1:], strict=False))
    assert ordered[-1].stop <= layout.size
    assert sum(place.stop - place.start for place in places) - 16 * (rows - room) == layout.bytes_at(room)
    assert room <= layout.rows
    assert 2 * room <= slots


KEYS, LAPS = 20_000, 40


def arena_of(memory):
    """One keyed table in the memory of a PS."""
    dynamic = DynamicOptions(keys=KEYS, admit_after=2, expire_after_examples=2_000)
    options, placement = row_options(4, dynamic=dynamic), place([0], 1, dynamic, ["user"])
    return Arena(options, placement, 0, BEGIN.seed, *(memory.part(name, shared=True) for name in ("rows", "keys")))


def grow(arena, done):
    """Look up new keys, twice, and pause now and then; ``done`` int64 (2,) counts laps and calls that may grow."""
    table = arena.keyed[0]
    for name in ("_make_room", "_make_room_to_count"):
        setattr(table, name, partial(counted, done, getattr(table, name)))
    for lap, keys in enumerate(np.split(np.arange(1, KEYS + 1), LAPS)):
        done[0] += 1
        asked = np.stack([keys, np.zeros_like(keys), np.ones_like(keys)], axis=1)
        for _ in range(2):
            arena.keyed.find(asked)
        if lap % 8 == 7:
            arena.keyed.sweep(100 * lap)


def counted(done, call, new):
    """Counts twice: an odd number says that a call is under way."""
    done[1] += 1
    call(new)
    done[1] += 1


@pytest.mark.parametrize("kills", [20, pytest.param(500, marks=pytest.mark.soak)])
def test_a_kill_while_a_table_grows_leaves_whole_rows(kills, tmp_path, monkeypatch):
    """SIGKILL at a random moment, in memory that outlives the process: what is found has each key once, with its row,
    and grows on.
    """
    monkeypatch.setattr(keyed_memory, "FIRST_ROWS", 16)
    monkeypatch.setattr(rank_memory, "_lock", lambda file, path: None)  # this process maps it too
    generator, done, inside = np.random.default_rng(5), np.frombuffer(mmap.mmap(-1, 16), np.int64), 0
    for number in range(kills):
        path = tmp_path / "run" / f"ps-{number}"
        memory = MemoryFile(path, Origin("run", "embedding_ps 0", 1))
        arena, done[:], wanted = arena_of(memory), 0, generator.integers(1, LAPS + 1)
        memory.ready()
        if not number:
            grow(arena_of(ProcessMemory()), done.copy())  # compiled before the first fork
        child = os.fork()
        if not child:
            with contextlib.suppress(BaseException):  # this copy of the test runner must not go on
                grow(arena, done)
                signal.pause()
            os._exit(1)
        while done[0] < wanted and os.waitpid(child, os.WNOHANG) == (0, 0):
            time.sleep(0.0002)
        time.sleep(0.001 * generator.random())
        os.kill(child, signal.SIGKILL)
        assert os.waitpid(child, 0)[1] == signal.SIGKILL
        inside += int(done[1] % 2)
        found = arena_of(MemoryFile.found(path, "run", "embedding_ps 0"))
        check_whole(found, generator)
        memory.remove()
    if kills > 100:
        assert inside > kills // 20, "many were killed in a growth"


def check_whole(arena, generator):
    """Each key has a row of its own that begins as it should, and the table goes on."""
    table = arena.keyed[0]
    used = table.in_use()
    keys = table.keys[used]
    assert len(np.unique(keys)) == len(keys) == table.counts.keys <= table.counts.room
    np.testing.assert_array_equal(table.resolve(keys.copy(), np.zeros(len(keys), np.int64)), used)
    for row in used[generator.integers(0, len(used), 5)] if len(used) else ():
        expected = initial_row(BEGIN.seed, 0, int(table.keys[row]), 4, KEYS)
        np.testing.assert_array_equal(arena.weights[row], np.array(expected, np.float32))
    arena.keyed.sweep(100 * LAPS)  # a pause that was under way comes again
    used, fresh = table.in_use(), np.arange(KEYS + 1, KEYS + 2_001)
    rows = table.resolve(fresh, np.full(2_000, 2))
    room = KEYS - len(used)
    assert np.count_nonzero(rows >= 0) == min(room, 2_000)
    assert len(np.unique([*rows[rows >= 0], *used])) == len(used) + min(room, 2_000)
