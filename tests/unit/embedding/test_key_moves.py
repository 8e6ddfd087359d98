"""Rows of keys on disk that are used most move to memory at a pause: the same values, the right ones, and kills."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rows import row_options
from test_keyed_table import AllThere

from ssmpi.data.batch import Batch
from ssmpi.embedding import key_moves, keyed_table
from ssmpi.embedding.client import Lookups, PrefetchedRows
from ssmpi.embedding.dynamic_options import DynamicOptions
from ssmpi.embedding.key_kernels import END, OFTEN, RESERVED, SEEN, age, see
from ssmpi.embedding.keyed_memory import KeyLayout
from ssmpi.embedding.keyed_table import Beginning, KeyedTable
from ssmpi.embedding.placement import place
from ssmpi.embedding.shards import local_tables
from ssmpi.embedding.table import Arena
from ssmpi.embedding.trackers import SCAR, Tracking, scope_of
from ssmpi.runtime.mpi.shared_memory import PrivateMemory, SharedMemory
from ssmpi.state.stored_rows import hot_bytes

TABLES, KEYS, HOT = 2, 1_500, 300  # of each table keys at most, and rows in memory
DIM, BATCH, PAUSES = 30, 64, 12


def arena_of(disk, options, **settings):
    """Two keyed tables, on ``disk`` if one is named."""
    placement = place([0] * TABLES, 1, options, ["a", "b"])
    rows, memory = row_options(DIM, storage=str(disk or ""), dynamic=options, **settings), PrivateMemory()
    if disk:
        memory = SharedMemory(disk, hot_bytes(rows, placement.parts_of(0), [HOT] * TABLES))
    return Arena(rows, placement, 0, seed=3, memory=memory)


def contents(arena):
    """Values of each key, by table, and its date."""
    found = {}
    for part in arena.parts:
        table = arena.keyed[part.table]
        for row in table.in_use().tolist():
            values = (arena.weights[part.base + row].tobytes(), arena.state[part.base + row].tobytes())
            assert (part.table, table.keys[row]) not in found
            found[part.table, table.keys[row]] = (*values, int(table.seen[row]))
    return found


def hot_share(arena, keys):
    """Which share of lookups of ``keys`` (rows, tables) finds its row among the first ones."""
    found = dict(places(arena))
    return np.mean([found.get((k, key), HOT) < HOT for k, column in enumerate(keys.T) for key in column.tolist()])


def places(arena):
    """Which row each key has."""
    for part in arena.parts:
        table = arena.keyed[part.table]
        for row in table.in_use().tolist():
            yield (part.table, int(table.keys[row])), row


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"optimizer": "adam"},
        {"optimizer": "sgd", "table_decay": 0.01},
        {"optimizer": "adamw", "table_decay": 0.01, "weight_decay": 0.1},
    ],
    ids=lambda settings: settings.get("optimizer", "adagrad"),
)
def test_training_has_the_same_bits_and_finds_more_rows_in_memory(disk, settings):
    """Half of the lookups are of keys that stay, by Zipf's law; tables are full, and free what expires."""
    options, generator = DynamicOptions(keys=KEYS, expire_after_examples=60 * BATCH), np.random.default_rng(5)
    arenas = [arena_of(folder, options, **settings) for folder in ("", disk)]
    tables = [local_tables(arena) for arena in arenas]
    lookups, moved, shares = [Lookups(each, 0, PrefetchedRows(lambda: False)) for each in tables], 0, []
    for pause in range(PAUSES):
        for _ in range(10):
            known = 1 + np.minimum(generator.zipf(1.3, (BATCH, TABLES)), 2_000) * 7_919 % 2_003
            keys = np.where(generator.random(known.shape) < 0.5, known, generator.integers(10_000, 10**9, known.shape))
            shares.append([hot_share(arena, keys) for arena in arenas])
            gradients = generator.normal(size=(BATCH, TABLES, DIM)).astype(np.float32)
            batch = Batch(np.empty((BATCH, 0), np.int32), np.empty((BATCH, 0)), np.empty(BATCH), keys)
            for each in lookups:
                ((_, lookup),) = each.prefetched([batch])
                each.push(lookup, gradients)
        before = dict(places(arenas[1]))
        for each in tables:
            each.sweep(10 * BATCH * (pause + 1))
        moved += sum(before[key] != row for key, row in places(arenas[1]))
        assert contents(arenas[0]) == contents(arenas[1])
    assert moved > 200
    of_memory, of_disk = np.mean(shares[len(shares) // 2 :], axis=0)
    assert of_disk > 1.05 * of_memory


def table_over(memory, values, hot, *, kept):
    options, begin = DynamicOptions(keys=len(values[0])), Beginning(seed=1, table=0, vector=2, bound=0.5, state=0.0)
    return KeyedTable(options, memory, values, begin, allocator=AllThere(hot), kept=kept)


USE = st.one_of(st.integers(0, 12), st.integers(250, 255))
USED = st.lists(st.tuples(st.booleans(), USE), min_size=1, max_size=40)  # has a key, and its use


@given(USED, st.integers(RESERVED, 20), st.integers(0, 3), st.data())
def test_rows_used_most_move_and_a_kill_at_any_moment_leaves_them_whole(rows, hot, room, data):
    """Which rows move, by the rule in plain Python; a kill comes before a move, or between its two keys."""
    count = RESERVED + len(rows)
    memory = np.zeros(KeyLayout(count + room, counted=False).size, np.uint8)
    values = np.arange(2.0 * (count + room), dtype="f4").reshape(-1, 2), np.arange(count + room, dtype="f4")[:, None]
    table = table_over(memory, values, hot, kept=False)
    table.head[END] = count
    for row, (has_key, use) in enumerate(rows, RESERVED):
        table.keys[row], table.seen[row], table.uses[row] = 1_000 * row * has_key, -row, use * has_key
    expected = {int(key): (2.0 * row, row, -row) for row, key in enumerate(table.keys.tolist()) if key}
    use = {row: int(table.uses[row]) if table.keys[row] else -4 for row in range(RESERVED, count)}
    best = sorted((row for row in use if row >= hot and use[row] > 4), key=lambda row: (-use[row], row))
    worst = sorted((row for row in use if row < hot), key=lambda row: (use[row], row))
    pairs = [(row, other) for row, other in zip(best, worst, strict=False) if use[row] >= use[other] + 4]
    rising, sinking = sorted(row for row, _ in pairs), sorted(row for _, row in pairs if table.keys[row])
    free = [row for _, row in pairs if not table.keys[row]]
    spare = free or room or not table.keys[hot:count].all()
    moves = table._moves()
    assert [row for row in moves[:, 0].tolist() if row >= hot] == (rising if spare else [])
    assert [row for row in moves[:, 0].tolist() if row < hot] == (sinking if spare else [])
    done = data.draw(st.integers(0, len(moves)))
    key_moves.move(moves[:done], table.keys, table.seen, table.uses, *values, np.empty((0, 2)))
    if done < len(moves) and data.draw(st.booleans()):
        before, after = moves[done]
        for array in (*values, table.seen, table.keys):
            array[after] = array[before]
    again = table_over(memory, values, hot, kept=True)
    held = {
        int(again.keys[row]): (float(values[0][row, 0]), float(values[1][row, 0]), int(again.seen[row]))
        for row in again.in_use()
    }
    assert held == expected
    assert len(again.in_use()) == len(expected) == again.counts.keys
    found = again.resolve(np.array(sorted(expected)), np.zeros(len(expected), np.int64))
    assert again.keys[found].tolist() == sorted(expected)


def test_no_row_moves_while_rows_are_saved(disk):
    """The pause neither waits for it nor skips the rest."""
    arena = arena_of(disk, DynamicOptions(keys=KEYS))
    table = arena.keyed[0]
    for times in range(4):
        table.resolve(
            np.arange(1, 1_000) if times == 0 else np.arange(900, 1_000), np.ones(999 - 899 * (times > 0), int)
        )
    before, told = dict(places(arena)), []
    with arena.move_lock:
        arena.sweep(100)
    assert dict(places(arena)) == before
    assert (table.seen[table.in_use()] == 100).all()
    arena.moved = lambda *rows: told.append(np.stack(rows, axis=1).tolist())
    arena.sweep(200)
    after = dict(places(arena))
    assert {key for key, row in after.items() if row < HOT} >= {(0, key) for key in range(900, 1_000)}
    went = {before[key]: row for key, row in after.items() if before[key] != row}
    assert went.items() <= dict(told[0]).items()
    assert len(dict(told[0])) == len(set(dict(told[0]).values())) == len(told[0])


def test_moves_end_in_time(disk, monkeypatch):
    """What has moved is found."""
    arena, now = arena_of(disk, DynamicOptions(keys=KEYS)), iter(range(100))
    table = arena.keyed[0]
    for keys in (np.arange(1, 1_400), *[np.arange(1_100, 1_400)] * 3):
        table.resolve(keys, np.ones(len(keys), int))
    monkeypatch.setattr(key_moves, "AT_A_TIME", 100)
    monkeypatch.setattr(key_moves, "SECONDS", 2.5)
    monkeypatch.setattr(keyed_table.time, "monotonic", lambda: next(now))
    before = dict(places(arena))
    arena.sweep(100)
    after = dict(places(arena))
    assert 0 < sum(before[key] != row for key, row in after.items()) <= 200
    found = table.resolve(np.arange(1, 1_400), np.zeros(1_399, int))
    assert table.keys[found].tolist() == list(range(1, 1_400))


@pytest.mark.parametrize("kind", ["mfu", "ssu", "scar"])
def test_a_pause_without_time_for_moves_changes_nothing(disk, monkeypatch, kind):
    arena = arena_of(disk, DynamicOptions(keys=KEYS))
    scope, tracking, table = scope_of(arena.placement, 0), Tracking(kind, 0.1, seed=1), arena.keyed[1]
    tracker = tracking.over(scope, np.zeros(tracking.bytes_for(scope), "u1")) if tracking.counts else None
    arena.moved = (tracker or SCAR(scope, 0.1, arena.weights)).moved
    for keys in (np.arange(1, 1_400), *[np.arange(1_100, 1_400)] * 3):
        rows = arena.parts[1].base + table.resolve(keys, np.ones(len(keys), int))
        if tracker:
            tracker.observe(rows.astype("i4"), np.ones(len(rows), "i4"))
    monkeypatch.setattr(key_moves, "SECONDS", 0.0)
    before = dict(places(arena))
    arena.sweep(100)
    assert dict(places(arena)) == before


@pytest.mark.parametrize("kind", ["mfu", "ssu", "scar"])
def test_what_is_to_be_saved_first_moves_too(disk, kind):
    """The selection has the keys that it has without moves."""
    selected = []
    for moves in (False, True):
        arena, generator = arena_of(disk, DynamicOptions(keys=KEYS)), np.random.default_rng(6)
        scope, table, part = scope_of(arena.placement, 0), arena.keyed[1], arena.parts[1]
        tracking = Tracking(kind, 0.1, seed=1)
        tracker = tracking.over(scope, np.zeros(tracking.bytes_for(scope), "u1")) if tracking.counts else None
        tracker = tracker or SCAR(scope, 0.1, arena.weights)
        arena.moved = tracker.moved
        for keys in (
            np.arange(1, 1_400),
            *(generator.choice(np.arange(1, 1_400), 300, replace=False) for _ in range(9)),
        ):
            rows = part.base + table.resolve(keys, np.ones(len(keys), int))
            arena.weights[rows] += generator.normal(size=(len(rows), DIM)).astype("f4")
            tracker.observe(rows.astype("i4"), np.ones(len(rows), "i4"))
        if moves:
            before = dict(places(arena))
            arena.sweep(100)
            assert sum(before[key] != row for key, row in places(arena)) > 200
        of = {part.base + row: key for (number, key), row in places(arena) if number == 1}
        selected.append({of[row] for row in tracker.select().rows.tolist() if row in of})
    assert len(selected[0]) > 100
    assert selected[0] == selected[1]


def test_a_free_row_does_not_decay(disk):
    """A kill may have left the clock of a row that moved away."""
    arena = arena_of(disk, DynamicOptions(keys=KEYS), optimizer="sgd", table_decay=0.01)
    arena.keyed[0].resolve(np.arange(1, 50), np.ones(49, int))
    row = arena.parts[0].base + RESERVED + 20
    arena.clocks[row], arena.keyed[0].keys[RESERVED + 20] = 7.0, 0
    arena.begin_clocks()
    assert not arena.clocks[row].any()


def test_a_new_key_does_not_have_the_use_of_the_last_one():
    seen, uses, keys = np.full(3, 50), np.full(3, 200, np.uint8), np.array([0, 0, 8])
    assert age(keys, seen, uses, 500, 100) == 1
    assert uses[2] == 0
    values = np.zeros((20, 2), "f4"), np.zeros((20, 1), "f4")
    table = table_over(np.zeros(KeyLayout(20, counted=False).size, np.uint8), values, 4, kept=False)
    table.resolve(np.arange(1, 19), np.ones(18, int))
    table.resolve(np.arange(19, 21), np.ones(2, int))
    table.sweep(100)
    assert table.counts.evicted > 0
    assert (table.uses > 0).tolist() == (table.keys != 0).tolist()


def test_use_counts_batches_up_to_some_and_fades():
    seen, uses, keys = np.array([0, 0, 7, 7, 7]), np.array([9, 9, 80, 80, 80], np.uint8), np.array([0, 0, 5, 0, 6])
    for _ in range(OFTEN + 5):
        see(seen, 2)
    assert seen[2] == SEEN + OFTEN
    see(seen, 4)
    see(seen, 4)
    assert seen[4] == SEEN + 1
    assert age(keys, seen, uses, 1_000, 900) == 0
    assert (seen.tolist(), uses.tolist()) == ([0, 0, 1_000, 7, 1_000], [9, 9, 70 + 32, 0, 70 + 8])
    for pause in range(60):
        see(seen, 2)
        for _ in range(OFTEN + 1):
            see(seen, 4)
        age(keys, seen, uses, 1_001 + pause, 0)
    assert uses[4] == max(uses) <= 255
    assert 4 < uses[2] < 40
