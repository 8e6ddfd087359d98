"""Rows of keys that are saved during training, against plain dictionaries: each key has the values of its newest save,
wherever its row lies by then.
"""

import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rows import row_options
from strength import at_least

from ssmpi.embedding.dynamic_options import DynamicOptions
from ssmpi.embedding.placement import place
from ssmpi.embedding.table import Arena
from ssmpi.runtime.errors import DataError
from ssmpi.runtime.files.log import log
from ssmpi.state.checkpoint.rows import records
from ssmpi.state.checkpoint.rows.row_store import RowStore

IDS, KEYED = 5, 1  # rows of the table of ids, which is the first; the number of the other one
ROOM = 12
PLACEMENT = place((IDS, 0), 1, DynamicOptions(keys=ROOM, expire_after_examples=30), ("plain", "user"))
BASE = next(part.base for part in PLACEMENT.keyed_parts_of(0))


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda _: None)


def arena_of(seed=1):
    return Arena(row_options(dim=3), PLACEMENT, 0, seed)


def look_up(arena, *keys):
    """As training does, which gives each a row if there is room; the arena's rows of those that have one."""
    asked = np.array(keys, np.int64)
    rows = arena.keyed[KEYED].resolve(asked, np.ones_like(asked))
    return BASE + rows[rows >= 0]


def values_of(arena):
    """State, weights, and of keys the date, by key, or by number of other rows."""
    table = arena.keyed[KEYED]
    fixed = [row for row in range(len(arena.weights)) if not BASE + 2 <= row < BASE + 2 + ROOM]
    found = {("row", row): [*arena.state[row], *arena.weights[row]] for row in fixed}
    for row in table.in_use():
        at = BASE + row
        found["key", int(table.keys[row])] = [*arena.state[at], *arena.weights[at], table.seen[row]]
    return found


def loaded(path):
    """What another process finds, and its store."""
    arena = arena_of(seed=99)
    store = RowStore(path, arena, 0)
    store.restore(store.load())
    return values_of(arena), store


STEPS = st.lists(
    st.one_of(
        st.lists(st.integers(1, 9), min_size=1, max_size=4, unique=True).map(lambda keys: ("look up", keys)),
        st.sets(st.integers(0, 9)).map(lambda places: ("save", places)),
        st.integers(1, 50).map(lambda examples: ("pause", examples)),
        st.sampled_from([("save_all",), ("another process",), ("torn",)]),
    ),
    max_size=25,
)


@at_least(60)
@given(STEPS, st.sampled_from([1, 60, 10_000]))
def test_each_key_reads_back_as_in_its_newest_save(tmp_path_factory, steps, piece):
    path = tmp_path_factory.mktemp("rows") / "embedding-0000.rows"
    arena, generator, now = arena_of(), np.random.default_rng(1), 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(records, "PIECE", piece)
        store = RowStore(path, arena, 0)
        store.save_all(0)
        saved = values_of(arena)
        for step, *given_ in steps:
            arena.weights[:], arena.state[:] = generator.normal(size=(2, len(arena.weights), 1))
            if step == "look up":
                look_up(arena, *given_[0])
            elif step == "pause":
                now += given_[0]
                arena.keyed.sweep(now)
            elif step == "save":
                rows = np.array(sorted(given_[0] | {BASE, len(arena.weights) - 1}), np.int32)
                store.save(rows, now, 0.25)
                table, live = arena.keyed[KEYED], values_of(arena)
                keys = {("key", int(table.keys[row - BASE])) for row in rows if row >= BASE + 2}
                named = keys | {("row", int(row)) for row in rows if row < BASE + 2}
                saved |= {name: live[name] for name in named & live.keys()}
            elif step == "torn":
                with path.open("ab") as file:
                    file.write(bytes(generator.integers(0, 256, 150, np.uint8)))
            elif step == "another process":
                store = RowStore(path, arena, 0)
                store.load()
            else:
                store.save_all(now)
                saved = values_of(arena)
            assert loaded(path)[0] == saved


def test_a_row_whose_key_changes_while_it_is_copied_is_left_out(tmp_path):
    """The pause between two looks at its key gives the row to another one."""
    arena, store = arena_of(), None
    rows = look_up(arena, 5, 6, 7)
    store = RowStore(tmp_path / "rows", arena, 0)
    store.save_all(0)
    before, table = values_of(arena), arena.keyed[KEYED]
    arena.weights[rows] = 8.0

    class Changing:
        """The weights, at whose copying the middle row loses its key."""

        shape, dtype = arena.weights.shape, arena.weights.dtype

        def __getitem__(self, which):
            table.keys[rows[1] - BASE] = 66
            return state[which]

    state, arena.state = arena.state, Changing()
    store.save(np.sort(rows).astype(np.int32), 10, 0.5)
    found, _ = loaded(tmp_path / "rows")
    assert found["key", 6] == before["key", 6]
    assert ("key", 66) not in found
    for key in (5, 7):
        assert found["key", key][1:4] == [8.0] * 3


def test_keys_beyond_the_room_are_left_out_and_named(tmp_path, monkeypatch):
    """The checkpoint has as many as there is room for; rows saved since have others, which took the place of some."""
    said = []
    monkeypatch.setattr(log, "warning", said.append)
    arena = arena_of()
    look_up(arena, *range(1, 5))
    store = RowStore(tmp_path / "rows", arena, 0)
    store.save_all(0)
    later = arena_of(seed=2)
    look_up(later, *range(3, 3 + ROOM))
    before = values_of(later)
    again = RowStore(tmp_path / "rows", later, 0)
    again.restore(again.load())
    found, first = values_of(later), values_of(arena)
    assert found.keys() == before.keys()
    for name, values in found.items():
        expected = first if name in (("key", 3), ("key", 4)) or name[0] == "row" else before
        assert values == expected[name]
    (line,) = said
    assert "table 1: 2 keys that were saved during training find no room" in line


def test_another_layout_of_keys_is_refused(tmp_path):
    arena = arena_of()
    RowStore(tmp_path / "rows", arena, 0).save_all(0)
    other = Arena(row_options(dim=3), place((IDS, len(arena.weights) - IDS), 1), 0, 1)
    with pytest.raises(DataError, match="holds the rows of other tables"):
        RowStore(tmp_path / "rows", other, 0).load()
