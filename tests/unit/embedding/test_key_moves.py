"""Rows of keys on disk that are used most move to memory at a pause: the same values, the right ones, and kills."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rows import row_options
from test_keyed_table import AllThere

from ssmpi.data.batch import Batch
from ssmpi.embedding import key_moves
from ssmpi.embedding.client import Lookups, PrefetchedRows
from ssmpi.embedding.dynamic_options import DynamicOptions
from ssmpi.embedding.key_kernels import END, OFTEN, RESERVED, SEEN, age, see
from ssmpi.embedding.keyed_memory import KeyLayout
from ssmpi.embedding.keyed_table import Beginning, KeyedTable
from ssmpi.embedding.placement import place
from ssmpi.embedding.shards import local_tables
from ssmpi.embedding.table import Arena
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
    moves = table.moves()
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
    before = dict(places(arena))
    with arena.still:
        arena.sweep(100)
    assert dict(places(arena)) == before
    assert (table.seen[table.in_use()] == 100).all()
    told = []
    arena.set_observer(lambda rows, times: told.extend(zip(rows.tolist(), times.tolist(), strict=True)))
    arena.sweep(200)
    after = dict(places(arena))
    assert {key for key, row in after.items() if row < HOT} >= {(0, key) for key in range(900, 1_000)}
    assert sorted(told) == sorted((row, 1) for key, row in after.items() if before[key] != row), "to be saved"


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
