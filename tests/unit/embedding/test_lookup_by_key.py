"""Keys and rows of PSs on other hosts in one round trip, against the same tables mapped: to the bit."""

import itertools

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from rows import Replies, push_to, row_options

from ssmpi.data.batch import Batch
from ssmpi.embedding import wire
from ssmpi.embedding.client import Lookups, PrefetchedRows
from ssmpi.embedding.dynamic_options import DynamicOptions, FeatureOptions
from ssmpi.embedding.key_kernels import RESERVED, SHARED_ID, owner_of
from ssmpi.embedding.placement import place
from ssmpi.embedding.server import EmbeddingServer
from ssmpi.embedding.table import Arena
from ssmpi.runtime.errors import DataError
from ssmpi.runtime.mpi.service import request_tag

SIZES, NAMES, DIM = (0, 30, 0), ("user", "shop", "item"), 4
NOTHING = np.empty(0, np.float32)


class SomeMapped:
    """A transport to PSs of this process, of which those in ``near`` are mapped. The others answer requests at once,
    and their replies arrive when they are waited for. ``trips`` has how many keys each of them is asked for, by batch.
    """

    def __init__(self, arenas, near):
        self.arenas, self.near = arenas, near
        self.placement, self.options = arenas[0].placement, arenas[0].options
        self.replies = [Replies() for _ in arenas]
        self.servers = [EmbeddingServer(*each) for each in zip(arenas, self.replies, strict=True)]
        self.arriving, self.trips = [], []

    @property
    def mapped(self):
        pairs = [(a.weights, a.state) if p in self.near else (NOTHING,) * 2 for p, a in enumerate(self.arenas)]
        return list(itertools.chain(*pairs))

    @property
    def maps(self):
        nothing = np.empty(0, np.int64)
        return [a.keyed.maps if p in self.near else [nothing] * len(a.keyed.maps) for p, a in enumerate(self.arenas)]

    def find(self, asked, thread):
        assert not any(len(each) for p, each in enumerate(asked) if p not in self.near), "they are asked with rows"
        return [arena.keyed.find(each) for arena, each in zip(self.arenas, asked, strict=True)]

    def ask(self, lookup, thread):
        arriving, keys = [], {}
        for p, part in enumerate(lookup.parts):
            if p not in self.near and part.start < part.stop:
                payload, reply = lookup.request(p)
                keys[p] = len(wire.read_pull(payload).keys)
                self.servers[p].handle(0, request_tag(wire.PULL, thread), payload.view(np.uint8).copy())
                arriving.append((payload, reply, [content for *_, content in self.replies[p].sent]))
                self.replies[p].sent = []
        self.arriving.append(arriving)
        self.trips.append(keys)

    def collect(self, lookup):
        for _, reply, (content,) in self.arriving.pop(0):
            assert len(content) == reply.nbytes
            reply.view(np.uint8).reshape(-1)[:] = content

    def push(self, lookup, gradients, factor, thread):
        push_to(self.arenas, lookup, gradients, factor)


def tables(dynamic, servers, near):
    """Lookups of tables on so many PSs, and their transport."""
    options = row_options(DIM, dynamic=dynamic)
    placement = place(SIZES, servers, dynamic, NAMES)
    transport = SomeMapped([Arena(options, placement, server, seed=3) for server in range(servers)], near)

    def lookups(*, counts):
        return Lookups(transport, 0, PrefetchedRows(lambda: False) if counts else None)

    return lookups, transport


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
    """Parts of batches, pulled ahead, with a pause behind each, then batches that do not count: all values pulled, and
    what the PSs hold.
    """
    generator, (lookups, transport) = np.random.default_rng(seed), tables(dynamic, servers, near)
    pulled, now, scoring, training = [], 0, lookups(counts=False), lookups(counts=True)
    for part in parts:
        for batch, lookup in training.prefetched([batch_of(generator, rows) for rows in part]):
            pulled.append(lookup.values.copy())
            training.push(lookup, generator.normal(size=lookup.values.shape).astype(np.float32))
            assert lookup.occurrences().sum() == len(batch) * len(SIZES)
            assert lookup.occurrences().min() > 0
            now += len(batch)
        pulled += [lookup.values.copy() for _, lookup in scoring.prefetched([batch_of(generator, 9)])]
        for arena in transport.arenas:
            arena.keyed.sweep(now)
    held = [values[rows_in_use(arena)] for arena in transport.arenas for values in (arena.weights, arena.state)]
    held += [array for a in transport.arenas for t in a.keyed.values() for array in (t.keys, t.seen, t.candidates())]
    return [*pulled, *held], transport


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
    found, transport = train(dynamic, servers, near & set(range(servers)), parts, seed)
    assert len(found) == len(expected)
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    far = set(range(servers)) - near
    assert len(transport.trips) == (sum(map(len, parts)) + len(parts) if far else 0), "one for each batch"
    assert all(set(keys) <= far for keys in transport.trips)


@pytest.mark.parametrize("servers", [1, 2, 3])
@pytest.mark.parametrize("after", [1, 2])
def test_keys_move_the_bytes_of_their_formula(servers, after):
    """Requests: rows by number, those that features share, and keys; replies: numbers of keys' rows, all rows."""
    dynamic = DynamicOptions(keys=60, admit_after=after)
    lookups, transport = tables(dynamic, servers, set())
    own, generator, sightings = lookups(counts=True), np.random.default_rng(5), {}
    for _ in range(6):
        batch, moved = batch_of(generator, 20), []
        asked = [(k, f) for f, column in enumerate(batch.keys.T) for k in np.unique(column).tolist() if k]
        for key, feature in asked:
            times = int(np.sum(batch.keys[:, feature] == key))
            sightings[key, feature] = sightings.get((key, feature), 0) + times
        rows = len(np.unique(batch.ids)) + int(np.sum((batch.keys == 0).any(axis=0)))
        found = sum(sightings[each] >= after for each in asked)
        lookup = own.ask(own._keys.ids(batch))
        for payload, _, replies in transport.arriving[0]:
            moved += [payload.nbytes, *map(len, replies)]
        messages = len(transport.trips[-1])
        with_keys = [server for server, keys in transport.trips[-1].items() if keys]
        assert set(with_keys) == {int(owner_of(key, servers)) for key, _ in asked}
        expected = wire.key_bytes(len(asked)) + wire.pulled_bytes(messages, rows + 2 + len(asked), DIM)
        assert 0 <= sum(moved) - expected < messages * 4 * DIM, "ids fill whole rows"
        own.arrive(lookup)
        assert lookup.unique_count == rows + found + len({f for k, f in asked if sightings[k, f] < after})


@pytest.mark.parametrize("features", [[0, 2], [-1, 0], [1, 0]])
def test_a_server_refuses_features_that_it_does_not_know(features):
    _, transport = tables(DynamicOptions(keys=60), 1, set())
    asked = np.array([(7, feature, 1) for feature in features], np.int64)
    with pytest.raises(DataError, match="asked for keys of features other than the 2 keyed ones, in their order"):
        transport.arenas[0].keyed.find(asked)


def test_a_server_says_which_keys_have_no_row():
    _, transport = tables(DynamicOptions(keys=60, admit_after=2), 2, set())
    arena = transport.arenas[1]
    asked = np.array([(7, 0, 1), (8, 0, 2), (8, 1, 1), (9, 1, 5)], np.int64)
    item = arena.parts[-1]
    assert item.table == 2
    ids = np.empty(4, np.int32)
    rows = arena.keyed.read(asked, ids)
    assert ids.tolist() == [SHARED_ID, 2 * 2 + 1, SHARED_ID, 2 * 2 + 1]
    assert rows[[1, 3]].tolist() == [arena.parts[0].base + 2, item.base + 2]
