"""Bags that embedding PSs pool, against the same lookups by row: real requests, answered by real servers."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rows import row_options, tables_of
from test_bag_lookup import FEATURES, bags_of, drawn
from test_lookup import CARDINALITIES

from ssmpi.embedding import wire
from ssmpi.embedding.client import Lookups
from ssmpi.embedding.placement import place
from ssmpi.embedding.pooling import TableTraffic, counted, pooled_tables
from ssmpi.embedding.table import Arena
from ssmpi.embedding.trackers import NOTHING, Tracking
from ssmpi.runtime.errors import DataError

COUNTED = Tracking("mfu")
LENGTHS = (2.5, 1.0, 2.5)  # the second feature is no list


def over(options, servers=2, near=(), tracking=NOTHING):
    """Tables on PSs of this process, their arenas, and the accesses to the rows of each."""
    placement = place(CARDINALITIES, servers, lengths=LENGTHS)
    arenas, seen = [Arena(options, placement, k, seed=3) for k in range(servers)], [Counter() for _ in range(servers)]
    for arena, counts in zip(arenas, seen, strict=True):
        arena.set_observer(lambda rows, times, counts=counts: counts.update(dict(zip(rows, times, strict=True))))
    return tables_of(arenas, near, tracking), arenas, seen


def sent(tables, kind):
    """Payloads and replies of all messages of a kind."""
    return [message[1:] for shard in tables.shards for message in shard.messages if message[0] == kind]


def pooled(tables):
    """How many requests had bags."""
    return sum(wire.read_pull(payload).bags is not None for payload, _ in sent(tables, wire.PULL))


def options_of(pooling, **others):
    return row_options(4, shared_memory=False, pooling=pooling, **others)


def one_each(lists, weights):
    """The second feature has one id in each row."""
    lists = [[row[0], [(row[1] or [3])[0]], row[2]] for row in lists]
    if weights is not None:
        weights = [[row[0], [1.0], row[2]] for row in weights]
    return lists, weights


@pytest.mark.parametrize("servers", [1, 2, 3])
@pytest.mark.parametrize("near", [(), (0,)])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("optimizer", ["sgd", "rowwise_adagrad"])
def test_pooled_and_unpooled_agree(servers, near, weighted, optimizer):
    """To the bit where no list has rows on two PSs; accesses are counted alike."""
    generator = np.random.default_rng(servers)
    options = [options_of(pooling, optimizer=optimizer) for pooling in ("trainer", "server")]
    tables, arenas, seen = zip(*(over(each, servers, near, COUNTED) for each in options), strict=True)
    lookups, ids = [Lookups(each, thread=0) for each in tables], 0
    for batch in (9, 3, 14):
        lists, weights = one_each(*drawn(generator, batch, weighted=weighted))
        gradients = generator.normal(size=(batch, FEATURES, 4)).astype(np.float32)
        found = []
        ids += sum(len(bag) for row in lists for bag in row)
        for lookup in lookups:
            rows = lookup.pull(bags_of(lists, weights, first=batch % 4))
            found.append(rows.values.copy())
            lookup.push(rows, gradients, 0.5)
        if servers == 1:
            np.testing.assert_array_equal(*found)
        np.testing.assert_allclose(*found, rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(found[0][:, 1], found[1][:, 1])
    if servers > len(near):
        assert [pooled(each) > 0 for each in tables] == [False, True]
    for one, other in zip(*arenas, strict=True):
        np.testing.assert_array_equal(one.weights, other.weights)
        np.testing.assert_array_equal(one.state, other.state)
    assert seen[0] == seen[1]
    assert sum(counts.total() for counts in seen[0]) == ids


@given(st.data())
def test_any_lists(data):
    """Lists of any lengths, on any number of PSs: to the bit what one PS sends by row, if no table is split."""
    servers = data.draw(st.integers(1, 3))
    options = [options_of(pooling, optimizer="sgd", rate=0.1) for pooling in ("trainer", "server")]
    tables, arenas, _ = zip(*(over(each, servers) for each in options), strict=True)
    lookups = [Lookups(each, thread=0) for each in tables]
    bag = [st.lists(st.integers(0, rows - 1), max_size=4) for rows in CARDINALITIES]
    for _ in range(2):
        lists = data.draw(st.lists(st.tuples(*bag), max_size=5))
        weights = None
        if data.draw(st.booleans()):
            number = st.floats(-2, 2, width=32)
            weights = [[data.draw(st.lists(number, min_size=len(b), max_size=len(b))) for b in row] for row in lists]
        bags = bags_of(lists, weights)
        found = [lookup.pull(bags) for lookup in lookups]
        np.testing.assert_allclose(found[0].values, found[1].values, rtol=1e-5, atol=1e-6)
        gradients = np.arange(found[0].values.size, dtype=np.float32).reshape(found[0].values.shape)
        for lookup, rows in zip(lookups, found, strict=True):
            lookup.push(rows, gradients)
        for one, other in zip(*arenas, strict=True):
            np.testing.assert_array_equal(one.weights, other.weights)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("counted", [False, True])
def test_messages_have_the_bytes_of_their_formulas(weighted, counted):
    generator, options = np.random.default_rng(1), options_of("server")
    tables, *_ = over(options, 1, tracking=COUNTED if counted else NOTHING)
    lookups = Lookups(tables, thread=0)
    lists, weights = one_each(*drawn(generator, 12, weighted=weighted))
    rows = lookups.pull(bags_of(lists, weights))
    lookups.push(rows, np.ones_like(rows.values))
    singles = len({row[1][0] for row in lists})
    bags = sum(bool(row[f]) for row in lists for f in (0, 2))
    ids = sum(len(row[f]) for row in lists for f in (0, 2))
    unique = len({(f, i) for row in lists for f in (0, 2) for i in row[f]})
    bag_bytes = wire.pulled_bag_bytes(bags, ids, 4, weighted=weighted)
    ((asked, reply),), ((pushed, _),) = sent(tables, wire.PULL), sent(tables, wire.PUSH)
    assert asked.nbytes + reply.nbytes == wire.pulled_bytes(1, singles, 4) + bag_bytes
    bag_bytes = wire.pushed_bag_bytes(bags, unique, ids, 4, weighted=weighted)
    assert pushed.nbytes == wire.pushed_bytes(1, singles, 4, counted=counted) + bag_bytes
    assert pooled(tables) == 1


def test_a_row_beyond_the_arena_is_refused():
    (shard,) = over(options_of("server"), 1)[0].shards
    for singles, rows in (([200], [0]), ([0], [200])):
        singles, rows, ends = (np.array(each, np.int32) for each in (singles, rows, [1]))
        message = wire.pull(singles, wire.PulledBags(rows, ends, np.empty(0, np.float32)))
        with pytest.raises(DataError, match="asked for row 200 of 137"):
            shard.send(wire.PULL, message, None)


def test_what_is_less_to_send_is_pooled():
    """Long lists of different ids are; lists whose rows a batch needs once in any case are not; one id never is."""
    generator = np.random.default_rng(0)
    placement, options = place((100_000, 100_000, 5), 1, lengths=(8.0, 1.0, 8.0)), row_options(16)
    rows = [[generator.integers(0, n, k).tolist() for n, k in ((100_000, 8), (100_000, 1), (5, 8))] for _ in range(128)]
    bags = bags_of(rows)
    assert pooled_tables(placement, options, bags).tolist() == [True, False, False]
    forced = [row_options(16, pooling=pooling) for pooling in ("server", "trainer")]
    assert [pooled_tables(placement, one, bags).tolist() for one in forced] == [
        [True, False, True], [False, False, False],
    ]  # fmt: skip
    alike = bags_of([[[7, 7, 9], [1], []] for _ in range(128)])  # of a large table, but always the same rows
    assert pooled_tables(placement, options, alike).tolist() == [False, False, False]


@pytest.mark.parametrize("weighted", [False, True])
def test_counted_numbers_of_a_table(weighted):
    """On four PSs there is a sum for each PS that has rows of a bag."""
    generator = np.random.default_rng(0)
    placement = place((1_000, 9, 10), 4, lengths=(8.0, 1.0, 1.0))
    strides = placement.strides.tolist()
    assert strides[0] == 4
    lists, weights = drawn(generator, 40, weighted=weighted)
    for number, found in enumerate(counted(placement, bags_of(lists, weights, first=3), 16)):
        bags = [row[number] for row in lists]
        ids, rows = sum(map(len, bags)), len({i for bag in bags for i in bag})
        sums = sum(len({i % strides[number] for i in bag}) for bag in bags)
        assert found == TableTraffic(ids, rows, sums, 16, weighted)


def test_all_ids_different_are_the_most_that_is_sent():
    placement = place((100_000, 9), 4, lengths=(8.0, 1.0))
    lists = [[list(range(r * 8, r * 8 + 8)), [r % 9], []] for r in range(100)]
    found = counted(place((100_000, 9, 1), 4), bags_of(lists), 16)[0]
    assert found == TableTraffic.most(placement, 0, 100, 16, weighted=False)
