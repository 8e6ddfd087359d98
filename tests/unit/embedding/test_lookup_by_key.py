"""Keys and rows of PSs on other hosts in one round trip, against the same tables mapped: to the bit."""

from functools import partial

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from rows import row_options, tables_of

from ssmpi.data.batch import Batch
from ssmpi.embedding import wire
from ssmpi.embedding.client import Lookups, PrefetchedRows
from ssmpi.embedding.dynamic_options import DynamicOptions, FeatureOptions
from ssmpi.embedding.key_kernels import RESERVED, SHARED_ID, owner_of
from ssmpi.embedding.placement import place
from ssmpi.embedding.table import Arena
from ssmpi.embedding.trackers import Tracking
from ssmpi.runtime.errors import DataError

SIZES, NAMES, DIM = (0, 30, 0), ("user", "shop", "item"), 4
COUNTED = Tracking("mfu", 0.5)


def tables(dynamic, servers, near):
    """Lookups of tables on so many PSs, of which those ``near`` are mapped, the tables, and the arenas."""
    options = row_options(DIM, dynamic=dynamic)
    placement = place(SIZES, servers, dynamic, NAMES)
    arenas = [Arena(options, placement, server, seed=3) for server in range(servers)]
    found = tables_of(arenas, near, COUNTED)

    def lookups(*, counts):
        return Lookups(found, 0, PrefetchedRows(lambda: False) if counts else None)

    return lookups, found, arenas


def batch_of(generator, rows):
    """Few keys, some missing, many of them again and again."""
    keys = (generator.random((rows, 2)) ** 2 * 25).astype(np.int64) * 7919
    ids = generator.integers(0, SIZES[1], (rows, 1), np.int32)
    return Batch(ids, np.empty((rows, 0), np.float32), np.empty(rows, np.float32), keys)


def rows_in_use(arena):
    """Those of ids and keys, and the reserved ones."""
    rows = []
    for part in arena.parts:
        keyed = arena.keyed.get(part.table)
        own = [*range(RESERVED), *keyed.in_use().tolist()] if keyed else range(part.rows)
        rows += [part.base + row for row in own]
    return rows


def train(dynamic, servers, near, parts, seed):
    """Parts of batches, pulled ahead, with a pause behind each, then batches that do not count: all values pulled, what
    the PSs hold and have counted, and the tables.
    """
    generator, (lookups, found, arenas) = np.random.default_rng(seed), tables(dynamic, servers, near)
    accesses = [np.zeros(len(arena.weights), np.int64) for arena in arenas]
    for arena, counts in zip(arenas, accesses, strict=True):
        arena.set_observer(partial(np.add.at, counts))
    pulled, now, scoring, training = [], 0, lookups(counts=False), lookups(counts=True)
    for part in parts:
        for batch, lookup in training.prefetched([batch_of(generator, rows) for rows in part]):
            pulled.append(lookup.values.copy())
            training.push(lookup, generator.normal(size=lookup.values.shape).astype(np.float32))
            assert lookup.occurrences().sum() == len(batch) * len(SIZES)
            assert lookup.occurrences().min() > 0
            now += len(batch)
        pulled += [lookup.values.copy() for _, lookup in scoring.prefetched([batch_of(generator, 9)])]
        for arena in arenas:
            arena.keyed.sweep(now)
    held = [values[rows_in_use(arena)] for arena in arenas for values in (arena.weights, arena.state)]
    held += [array for a in arenas for t in a.keyed.values() for array in (t.keys, t.seen, t.candidates())]
    return [*pulled, *held, *accesses], found


RULES = st.builds(
    DynamicOptions, keys=st.sampled_from([3, 60]), admit_after=st.integers(1, 3),
    expire_after_examples=st.sampled_from([0, 20]),
    features=st.sampled_from([{}, {"item": FeatureOptions(admit_after=1)}]),
)  # fmt: skip
PARTS = st.lists(st.lists(st.sampled_from([7, 20, 1]), max_size=3), min_size=1, max_size=4)


@settings(max_examples=40, deadline=None)
@given(RULES, st.integers(1, 3), st.sets(st.integers(0, 2)), PARTS, st.integers(0, 99))
@example(DynamicOptions(keys=60, admit_after=2), 3, set(), [[20, 20], [20]], 1)
@example(DynamicOptions(keys=60), 2, {1}, [[20, 20], [20]], 1)
def test_who_maps_the_rows_does_not_matter(dynamic, servers, near, parts, seed):
    expected, _ = train(dynamic, servers, set(range(servers)), parts, seed)
    found, mixed = train(dynamic, servers, near, parts, seed)
    assert len(found) == len(expected)
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    for server, shard in enumerate(mixed.shards):
        kinds = [kind for kind, *_ in shard.messages]
        assert set(kinds) <= ({wire.FIND} if server in near else {wire.PULL, wire.PUSH})
        assert kinds.count(wire.PULL) <= sum(map(len, parts)) + len(parts), "one for each batch"


@pytest.mark.parametrize("servers", [1, 2, 3])
@pytest.mark.parametrize("after", [1, 2])
def test_keys_move_the_bytes_of_their_formula(servers, after):
    """Requests: rows by number, those that features share, and keys; replies: numbers of keys' rows, all rows."""
    dynamic = DynamicOptions(keys=60, admit_after=after)
    lookups, found, _ = tables(dynamic, servers, set())
    own, generator, sightings = lookups(counts=True), np.random.default_rng(5), {}
    for _ in range(6):
        batch = batch_of(generator, 20)
        asked = [(k, f) for f, column in enumerate(batch.keys.T) for k in np.unique(column).tolist() if k]
        for key, feature in asked:
            times = int(np.sum(batch.keys[:, feature] == key))
            sightings[key, feature] = sightings.get((key, feature), 0) + times
        rows = len(np.unique(batch.ids)) + int(np.sum((batch.keys == 0).any(axis=0)))
        admitted = sum(sightings[each] >= after for each in asked)
        lookup = own.ask(own._keys.ids(batch))
        sent = [(server, *shard.messages.pop()) for server, shard in enumerate(found.shards) if shard.messages]
        with_keys = {server for server, _, payload, _ in sent if len(wire.read_pull(payload).keys)}
        assert with_keys == {int(owner_of(key, servers)) for key, _ in asked}
        moved = sum(payload.nbytes + reply.nbytes for *_, payload, reply in sent)
        expected = wire.key_bytes(len(asked)) + wire.pulled_bytes(len(sent), rows + 2 + len(asked), DIM)
        assert 0 <= moved - expected < len(sent) * 4 * DIM, "ids fill whole rows"
        own.arrive(lookup)
        assert lookup.unique_count == rows + admitted + len({f for k, f in asked if sightings[k, f] < after})


@pytest.mark.parametrize("features", [[0, 2], [-1, 0], [1, 0]])
def test_a_server_refuses_features_that_it_does_not_know(features):
    _, _, (arena,) = tables(DynamicOptions(keys=60), 1, set())
    asked = np.array([(7, feature, 1) for feature in features], np.int64)
    with pytest.raises(DataError, match="asked for keys of features other than the 2 keyed ones, in their order"):
        arena.keyed.find(asked)


def test_a_server_says_which_keys_have_no_row():
    _, _, (_, arena) = tables(DynamicOptions(keys=60, admit_after=2), 2, set())
    asked = np.array([(7, 0, 1), (8, 0, 2), (8, 1, 1), (9, 1, 5)], np.int64)
    item = arena.parts[-1]
    assert item.table == 2
    ids = np.empty(4, np.int32)
    rows = arena.keyed.read(asked, ids)
    assert ids.tolist() == [SHARED_ID, 2 * 2 + 1, SHARED_ID, 2 * 2 + 1]
    assert rows[[1, 3]].tolist() == [arena.parts[0].base + 2, item.base + 2]
