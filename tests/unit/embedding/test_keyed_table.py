"""Rows by key against plain dictionaries: who is admitted, what expires, what a full table frees, and kills."""

import math
import mmap
import os
import signal
import time
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracle import initial_row, mix
from rows import row_options, tables_of

from ssmpi.data.batch import Batch
from ssmpi.embedding import key_kernels as kernels
from ssmpi.embedding.client import KeyLookup, Lookups, PrefetchedRows
from ssmpi.embedding.dynamic_options import DynamicOptions, FeatureOptions, KeyOptions
from ssmpi.embedding.keyed_memory import KeyLayout
from ssmpi.embedding.keyed_table import Beginning, KeyedTable
from ssmpi.embedding.placement import place
from ssmpi.embedding.shards import local_tables
from ssmpi.embedding.table import Arena
from ssmpi.runtime.compiled.hash_table import NOT_FOUND
from ssmpi.runtime.errors import SettingsError, TrainingError

WIDTH, ROWS = 3, 10
MOST = 15  # keys: at 16, half of the slots beside so few rows, a pause begins to count anew
BEGIN = Beginning(seed=7, table=4, vector=2, bound=0.25, state=0.5)  # two floats and a first-order weight


class AllThere:
    """Memory that is there from the beginning."""

    def __init__(self, hot=0):
        self.hot = hot

    def extend_rows(self, more):
        return ""

    def extend(self, more):
        return ""

    def release(self, less):
        pass


def table_over(options, memory=None, values=None, kept=False, rows=ROWS):
    memory = np.zeros(KeyLayout(rows, options.counts).size, np.uint8) if memory is None else memory
    values = values or (np.full((rows, WIDTH), 9.0, np.float32), np.full((rows, 2), 9.0, np.float32))
    return KeyedTable(options, memory, values, BEGIN, allocator=AllThere(), kept=kept), values, memory


@dataclass
class Oracle:
    """The rules in plain Python: the date by key, sightings by key; None is seen since the last pause."""

    options: DynamicOptions
    room: int
    dates: dict = field(default_factory=dict)
    sightings: dict = field(default_factory=dict)
    full: bool = False

    def look_up(self, key, times):
        """Whether the key has a row now."""
        if key not in self.dates:
            self.sightings[key] = self.sightings.get(key, 0) + times
            if self.sightings[key] < self.options.admit_after:
                return False
            if len(self.dates) == self.room:
                self.full = True
                return False
            self.sightings[key] = 0
        self.dates[key] = None
        return True

    def pause(self, now):
        most = self.options.expire_after_examples
        self.dates = {key: now if date is None else date for key, date in self.dates.items()}
        self.dates = {key: date for key, date in self.dates.items() if not most or now - date <= most}
        if self.full:
            surplus = len(self.dates) - (self.room - max(1, self.room // 8))
            oldest = sorted(self.dates, key=lambda key: (self.dates[key], key))
            for key in oldest[: max(0, surplus)]:
                del self.dates[key]
        self.full = False


def was_seen(date):
    """Since the last pause."""
    return kernels.SEEN <= date <= kernels.SEEN + kernels.OFTEN


BATCHES = st.lists(
    st.one_of(
        st.lists(st.tuples(st.integers(1, MOST), st.integers(1, 3)), max_size=12, unique_by=lambda pair: pair[0]),
        st.integers(1, 40),  # a pause after so many more examples
        st.just("kill"),
    ),
    max_size=40,
)


@given(BATCHES, st.integers(1, 3), st.sampled_from([0, 20, 60]))
def test_rows_come_and_go_as_in_plain_dictionaries(stream, after, most):
    options = DynamicOptions(keys=ROWS - 2, admit_after=after, expire_after_examples=most)
    table, values, memory = table_over(options)
    oracle, now = Oracle(options, ROWS - 2), 0
    for each in stream:
        if each == "kill":  # what a new process finds; nothing of the old one's is lost but what it never wrote
            table, *_ = table_over(options, memory, values, kept=True)
        elif isinstance(each, int):
            now += each
            oracle.pause(now)
            table.sweep(now)
        elif each:
            keys, times = (np.array(column, np.int64) for column in zip(*each, strict=True))
            rows = table.resolve(keys, times)
            expected = [oracle.look_up(int(key), int(count)) for key, count in each]
            assert [row != NOT_FOUND for row in rows] == expected
        held = {int(table.keys[row]): int(table.seen[row]) for row in table.in_use()}
        assert {key: None if was_seen(date) else date for key, date in held.items()} == oracle.dates
        assert table.counts.keys == len(held)
    found = table.resolve(np.arange(1, 31), np.zeros(30, np.int64))  # only looks up
    assert {key + 1 for key in np.flatnonzero(found >= 0)} == set(oracle.dates)
    for key, row in zip(range(1, 31), found, strict=True):
        if row >= 0:
            check_values(values, row, key)


def check_values(values, row, key):
    """The row begins as the counter-based generator says for its key."""
    vector = initial_row(BEGIN.seed, BEGIN.table, key % 2**64, 2, 16)  # 1 / sqrt(16) is the bound
    np.testing.assert_array_equal(values[0][row], np.array([*vector, 0.0], np.float32))
    np.testing.assert_array_equal(values[1][row], np.float32(BEGIN.state))


def tables_on(servers, keyed, plain, mapped, **dynamic):
    """Tables on so many PSs, of features without keys and then ``keyed`` ones, and the latter of each PS by number."""
    options = DynamicOptions(**dynamic)
    placement = place([9] * plain + [0] * keyed, servers, options, [f"feature {k}" for k in range(plain + keyed)])
    arenas = [Arena(row_options(2, dynamic=options), placement, server, seed=5) for server in range(servers)]
    return tables_of(arenas, mapped), [arena.keyed for arena in arenas]


def answered(ids, keys, tables):
    """The ids as an array, those of ``keys`` that are awaited as their PSs find them."""
    array = np.asarray(ids).copy()
    for asked, found in (
        zip(ids.awaited.asked, tables.find(ids.awaited.asked, 0), strict=True) if ids.awaited.asked else ()
    ):
        for (key, feature, _), id_ in zip(asked.tolist(), found.tolist(), strict=True):
            array[keys[:, feature] == key, 1 + feature] = id_
    return array


KEYS = st.lists(st.integers(-(2**63), 2**63 - 1).filter(bool), min_size=1, max_size=20, unique=True)


@given(st.lists(KEYS, min_size=1, max_size=3), st.integers(1, 5), st.integers(0, 2**32))
def test_a_batch_is_translated_by_mapped_maps_and_by_asking(keys, servers, seed):
    """Some PSs are mapped, the others asked: ids are row * PSs + PS, 0 for missing; the features may share keys."""
    tables, keyed = tables_on(servers, len(keys), plain=1, mapped=range(0, servers, 2), keys=60 * servers)
    lookup, generator = KeyLookup(tables, 0, counts=True), np.random.default_rng(seed)
    looked_up = [set() for _ in keys]
    for rows in (7, 40, 25):
        batch = np.stack([generator.choice([0, *of_one], rows) for of_one in keys], axis=1).astype(np.int64)
        plain = generator.integers(0, 2**31, (rows, 1), np.int32)
        ids = answered(lookup.ids(Batch(plain, np.empty((rows, 0)), np.empty(rows), batch)), batch, tables)
        np.testing.assert_array_equal(ids[:, 0], plain[:, 0])
        for feature, column in enumerate(batch.T):
            looked_up[feature] |= set(column[column != 0].tolist())
            for key, id_ in zip(column.tolist(), ids[:, 1 + feature].tolist(), strict=True):
                row, p = divmod(id_, servers)
                assert id_ == 0 if key == 0 else keyed[p][1 + feature].keys[row] == key
    for feature, wanted in enumerate(looked_up):
        parts = [of_one[1 + feature] for of_one in keyed]
        seen = [int(key) for table in parts for key in table.keys[table.in_use()]]
        assert sorted(seen) == sorted(wanted), "each has one row"
        assert all(was_seen(date) for table in parts for date in table.seen[table.in_use()].tolist())
    awaited = lookup.ids(Batch(plain, np.empty((rows, 0)), np.empty(rows), batch)).awaited
    expected = {
        (key, feature, int(np.sum(column == key)))
        for feature, column in enumerate(batch.T)
        for key in set(column.tolist()) - {0}
        if int(kernels.owner_of(key, servers)) % 2
    }
    assert not any(len(each) for each in awaited.asked[::2]), "those are mapped"
    asked = np.concatenate(awaited.asked).tolist() if awaited.asked else []
    assert sorted(map(tuple, asked)) == sorted(expected), "once each, with the number of its lookups"


def test_a_row_is_freed_after_more_than_that_many_examples():
    """One that was last looked up exactly so many ago stays."""
    keys, seen = np.arange(1, kernels.RESERVED + 4), np.zeros(kernels.RESERVED + 3, np.int64)
    seen[kernels.RESERVED :] = 50, 49, kernels.SEEN
    assert kernels.age(keys, seen, np.empty(0, np.uint8), 150, 100) == 1
    assert [bool(key) for key in keys[kernels.RESERVED :]] == [True, False, True]
    assert seen[-1] == 150


def test_keys_without_a_row_share_one():
    tables, (keyed,) = tables_on(1, 1, plain=0, mapped=[0], keys=60, admit_after=3)
    lookup, table = KeyLookup(tables, 0, counts=True), keyed[0]
    keys = np.array([[9], [8], [0], [9]], np.int64)
    batch = Batch(np.empty((4, 0), np.int32), np.empty((4, 0)), np.empty(4), keys)
    assert np.asarray(lookup.ids(batch))[:, 0].tolist() == [1, 1, 0, 1]
    assert dict(table.candidates().tolist()) == {9: 2, 8: 1}
    assert np.asarray(lookup.ids(batch))[:, 0].tolist() == [2, 1, 0, 2], "9 was looked up four times"
    assert dict(table.candidates().tolist()) == {8: 2}


def test_a_probability_admits_that_share_of_sightings():
    options = DynamicOptions(keys=40_000, admit_probability=0.25)
    table, *_ = table_over(options, rows=40_002)
    rows = table.resolve(np.arange(1, 40_001), np.ones(40_000, np.int64))
    assert abs(np.mean(rows >= 0) - 0.25) < 6 * np.sqrt(0.25 * 0.75 / 40_000)
    again = table.resolve(np.arange(1, 40_001), np.full(40_000, 2))
    expected = 1 - 0.75**3
    assert abs(np.mean(again >= 0) - expected) < 6 * np.sqrt(expected * (1 - expected) / 40_000)


def lookups_wanted(key, chance):
    """The first success of trials with this chance, from a uniform number in (0, 1), in plain Python."""
    draw = mix(mix(mix(BEGIN.seed) ^ BEGIN.table) ^ mix(key % 2**64)) >> 11
    return 1 + math.floor(math.log((draw + 0.5) / 2**53) / math.log(1 - chance))


@given(
    st.lists(st.tuples(st.integers(-40, 40).filter(bool), st.integers(1, 3)), max_size=60),
    st.sampled_from([0.1, 0.3, 0.9]),
    st.integers(1, 4),
)
def test_whom_a_probability_admits_does_not_depend_on_the_number_of_servers(stream, chance, servers):
    """Nor on the order in which other keys are looked up."""
    options, seen = DynamicOptions(keys=80, admit_probability=chance), {}
    tables = [table_over(options, rows=82)[0] for _ in range(servers)]
    for key, times in stream:
        table = tables[int(kernels.owner_of(np.int64(key), servers))]
        (row,) = table.resolve(np.array([key]), np.array([times]))
        seen[key] = seen.get(key, 0) + times
        assert (row != NOT_FOUND) == (seen[key] >= lookups_wanted(key, chance))


@pytest.mark.parametrize("after", [1, 2])
def test_one_request_may_name_a_key_twice_and_one_that_does_not_count(after):
    table, *_ = table_over(DynamicOptions(keys=ROWS - 2, admit_after=after))
    first, second, third, fourth = table.resolve(np.array([7, 8, 7, 7]), np.array([1, 0, 1, 1])).tolist()
    assert second == NOT_FOUND
    assert third == fourth >= 0
    assert first == (third if after == 1 else NOT_FOUND)
    assert table.keys[table.in_use()].tolist() == [7]


def test_a_full_table_shares_frees_the_oldest_and_says_how_many():
    options = DynamicOptions(keys=16)
    table, *_ = table_over(options, rows=18)
    table.resolve(np.arange(1, 17), np.ones(16, np.int64))
    table.sweep(100)
    table.resolve(np.arange(5, 17), np.ones(12, np.int64))
    assert table.resolve(np.arange(17, 20), np.ones(3, np.int64)).tolist() == [NOT_FOUND] * 3
    table.sweep(200)
    assert sorted(table.keys[table.in_use()]) == list(range(3, 17)), "an eighth is free: keys 1 and 2 were oldest"
    assert (table.counts.evicted, table.counts.refused) == (2, 3)
    assert (table.resolve(np.arange(17, 19), np.ones(2, np.int64)) >= 0).all()


def test_saved_keys_take_their_places():
    options = DynamicOptions(keys=6)
    table, values, _ = table_over(options, rows=8)
    rows = table.place(np.array([50, -3, 8]), np.array([5, 6, 7]))
    np.testing.assert_array_equal(table.resolve(np.array([8, -3, 50, 9]), np.zeros(4, np.int64)), [*rows[::-1], -1])
    assert (values[0][rows] == 9.0).all(), "its values are the caller's"
    assert len(table.place(np.arange(100, 110), np.zeros(10, np.int64))) == 3


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"keys": 0}, "keys must be at least 1"),
        ({"admit_after": 0}, "admit_after must be at least 1"),
        ({"admit_probability": 0.0}, "admit_probability must be above 0"),
        ({"admit_after": 2, "admit_probability": 0.5}, "exclude each other"),
        ({"expire_after_examples": -1}, "expire_after_examples must be at least 0"),
    ],
)
def test_wrong_settings_are_refused(wrong, message):
    with pytest.raises(SettingsError, match=message):
        DynamicOptions(**wrong)


def test_a_feature_differs_in_what_it_sets():
    options = DynamicOptions(
        keys=9, admit_after=4, expire_after_examples=5,
        features={"a": FeatureOptions(keys=3), "b": FeatureOptions(admit_probability=0.5, expire_after_examples=0)},
    )  # fmt: skip
    assert options.of("a") == KeyOptions(keys=3, admit_after=4, expire_after_examples=5)
    assert options.of("b") == KeyOptions(keys=9, admit_probability=0.5)
    assert options.of("c") == KeyOptions(keys=9, admit_after=4, expire_after_examples=5)
    with pytest.raises(SettingsError, match=r"features.d.admit_after = 2 and .* exclude each other"):
        DynamicOptions(features={"d": FeatureOptions(admit_after=2, admit_probability=0.5)})


def churn(table, seed, laps):
    """Look up, admit, expire and evict without end; ``laps`` int64 (1,) counts."""
    generator, now = np.random.default_rng(seed), 0
    while True:
        for _ in range(3):
            keys = np.unique(generator.integers(1, 4_000, 200))
            table.resolve(keys, np.ones(len(keys), np.int64))
        now += 100
        table.sweep(now)
        laps[0] += 1


@pytest.mark.parametrize("kills", [20, pytest.param(500, marks=pytest.mark.soak)])
def test_a_kill_at_any_moment_leaves_whole_rows(kills):
    options = DynamicOptions(keys=1_000, admit_after=2, expire_after_examples=300)
    rows = options.rows(1)
    memory = np.frombuffer(mmap.mmap(-1, KeyLayout(rows, options.counts).size), np.uint8)
    shared = np.frombuffer(mmap.mmap(-1, 4 * rows * (WIDTH + 2)), np.float32)
    values = shared[: rows * WIDTH].reshape(rows, WIDTH), shared[rows * WIDTH :].reshape(rows, 2)
    table, *_ = table_over(options, memory, values, rows=rows)
    table.resolve(np.array([1]), np.array([1]))  # compiled before the first fork
    table.sweep(1)
    generator, laps = np.random.default_rng(3), np.frombuffer(mmap.mmap(-1, 8), np.int64)
    for number in range(kills):
        laps[0], wanted = 0, generator.integers(1, 5)
        child = os.fork()
        if not child:
            churn(table, number, laps)
        while laps[0] < wanted and os.waitpid(child, os.WNOHANG) == (0, 0):
            time.sleep(0.0005)
        time.sleep(0.002 * generator.random())  # somewhere in a lap
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        table, *_ = table_over(options, memory, values, kept=True, rows=rows)
        used = table.in_use()
        keys = table.keys[used]
        assert len(np.unique(keys)) == len(keys) == table.counts.keys
        np.testing.assert_array_equal(table.resolve(keys.copy(), np.zeros(len(keys), np.int64)), used)
        for row in used[generator.integers(0, len(used), 5)] if len(used) else ():
            check_values(values, row, int(table.keys[row]))


def test_a_bad_id_beside_keys_is_named_with_its_place():
    options, dynamic = row_options(4, dynamic=DynamicOptions(keys=60)), DynamicOptions(keys=60)
    placement = place([0, 5], 1, dynamic, ["user", "shop"])
    tables = local_tables(Arena(options, placement, 0, seed=5))
    lookups = Lookups(tables, 0, PrefetchedRows(lambda: False))
    plain, keys = np.array([[4], [0], [7], [7]], np.int32), np.array([[9], [8], [0], [9]], np.int64)
    with pytest.raises(
        TrainingError, match=r"id 7 of feature shop \(row 2 of its batch\) is beyond its table of 5 rows"
    ):
        list(lookups.prefetched([Batch(plain, np.empty((4, 0)), np.empty(4), keys)]))


def test_keys_that_share_a_row_update_it_once():
    """By the sum of their gradients, as one id would; beside a missing one, and a feature with ids 0 and 1."""
    dynamic = DynamicOptions(keys=60, admit_after=9)
    options = row_options(4, optimizer="rowwise_adagrad", dynamic=dynamic)
    arrays, batch = [], np.array([[9], [8], [0], [9], [7]], np.int64)
    plain, gradients = np.array([[1], [0], [1], [1], [2]], np.int32), np.random.default_rng(1).normal(size=(5, 2, 4))
    for by_key in (True, False):
        sizes, keyed = ([0, 5], dynamic) if by_key else ([dynamic.rows(1), 5], DynamicOptions())
        placement = place(sizes, 1, keyed, ["user"] * len(sizes))
        arena = Arena(options, placement, 0, seed=5)
        arena.weights[:] = 0.0
        lookups, ids = Lookups(local_tables(arena), 0, PrefetchedRows(lambda: False)), plain
        if not by_key:
            ids = np.hstack([(batch != 0).astype(np.int32), plain])
        for _, lookup in lookups.prefetched([Batch(ids, np.empty((5, 0)), np.empty(5), batch)]):
            assert lookup.unique_count == 2 + 3
            lookups.push(lookup, gradients.astype(np.float32))
        first = [part.base for part in placement.parts]
        arrays.append(np.concatenate([arena.weights[a : a + 3] for a in first]))
    np.testing.assert_array_equal(*arrays)
