"""Bags are pulled and pushed as plain numpy would, to the bit, wherever their rows are."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rows import row_options, tables_of
from test_lookup import CARDINALITIES, OPTIONS, whole_table

from ssmpi.embedding.client import Lookups
from ssmpi.embedding.placement import place
from ssmpi.embedding.table import Arena
from ssmpi.runtime.bags import Bags, IdRoom
from ssmpi.runtime.errors import TrainingError

FEATURES = len(CARDINALITIES)


def bags_of(lists, weights=None, first=0):
    """Bags of lists, ``lists[row][feature]``; they begin at ``first`` in their room."""
    flat = [bag for row in lists for bag in row]
    count = sum(map(len, flat))
    room = IdRoom(first + count, weighted=weights is not None)
    room.ids[:first] = -1
    room.ids[first:] = [i for bag in flat for i in bag]
    if weights is not None:
        room.weights[first:] = [w for row in weights for bag in row for w in bag]
    starts = first + np.cumsum([0, *map(len, flat)])
    return Bags(room, starts.astype(np.int64), FEATURES)


def drawn(generator, batch=9, longest=5, *, weighted=False):
    """Lists of 0 to ``longest`` ids, many of them twice, and weights of each."""
    lists = [
        [generator.integers(0, rows, generator.integers(0, longest + 1)).tolist() for rows in CARDINALITIES]
        for _ in range(batch)
    ]
    if not weighted:
        return lists, None
    return lists, [[generator.random(len(bag)).astype(np.float32).tolist() for bag in row] for row in lists]


def placed(options, mapped_ones=(0, 1)):
    """Rows that messages bring come one by one."""
    placement = place(CARDINALITIES, 2)
    options = replace(options, settings=replace(options.settings, pooling="trainer"))
    arenas = [Arena(options, placement, server, seed=3) for server in range(2)]
    return Lookups(tables_of(arenas, mapped_ones), thread=0), arenas


def pooled(tables, lists, weights, width):
    """float32 sums, one id after the other."""
    out = np.zeros((len(lists), FEATURES, width), np.float32)
    for r, row in enumerate(lists):
        for f, bag in enumerate(row):
            for k, i in enumerate(bag):
                weight = np.float32(1 if weights is None else weights[r][f][k])
                out[r, f] += weight * tables[f][i]
    return out


def summed(gradients, lists, weights, table):
    """The gradient of every row of a table that is looked up."""
    found = {}
    for r, row in enumerate(lists):
        for k, i in enumerate(row[table]):
            weight = np.float32(1 if weights is None else weights[r][table][k])
            found.setdefault(i, np.zeros(gradients.shape[2], np.float32))
            found[i] += weight * gradients[r, table]
    return found


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("mapped_ones", [(0, 1), (0,), ()])
@pytest.mark.parametrize("weighted", [False, True])
def test_like_plain_numpy(options, mapped_ones, weighted):
    generator, width = np.random.default_rng(4), options.layout.width
    lookups, arenas = placed(options, mapped_ones)
    _, plain = placed(options)
    for batch, first in ((9, 0), (4, 3), (12, 0)):  # a short one, and one that needs more room
        lists, weights = drawn(generator, batch, weighted=weighted)
        tables = [whole_table(arenas, f) for f in range(FEATURES)]
        lookup = lookups.pull(bags_of(lists, weights, first))
        np.testing.assert_array_equal(lookup.values, pooled(tables, lists, weights, width))
        times = {}
        for row in lists:
            for f, bag in enumerate(row):
                for i in bag:
                    times[f, i] = times.get((f, i), 0) + 1
        assert sorted(lookup.occurrences().tolist()) == sorted(times.values())
        gradients = generator.normal(size=lookup.values.shape).astype(np.float32)
        lookups.push(lookup, gradients, 0.5)
        placement = place(CARDINALITIES, 2)
        for f in range(FEATURES):
            for i, gradient in summed(gradients, lists, weights, f).items():
                part = i % placement.strides[f]
                owner = placement.owners[f, part]
                row = np.array([placement.bases[f, part] + i // placement.strides[f]], np.int32)
                plain[owner].update(row, gradient[None], 0.5)
        for arena, other in zip(arenas, plain, strict=True):
            np.testing.assert_array_equal(arena.weights, other.weights)
            np.testing.assert_array_equal(arena.state, other.state)


@given(st.data())
def test_any_lists(data):
    """Empty batches' bags, repeated ids, short batches after long ones."""
    options = row_options(3, optimizer="sgd", rate=0.1)
    lookups, arenas = placed(options, data.draw(st.sampled_from([(0, 1), (1,), ()])))
    for _ in range(2):
        lists = data.draw(
            st.lists(st.tuples(*(st.lists(st.integers(0, rows - 1), max_size=4) for rows in CARDINALITIES)), max_size=5)
        )
        weights = None
        if data.draw(st.booleans()):
            number = st.floats(-2, 2, width=32)
            weights = [[data.draw(st.lists(number, min_size=len(b), max_size=len(b))) for b in row] for row in lists]
        tables = [whole_table(arenas, f) for f in range(FEATURES)]
        lookup = lookups.pull(bags_of(lists, weights))
        assert lookup.values.shape == (len(lists), FEATURES, 3)
        np.testing.assert_array_equal(lookup.values, pooled(tables, lists, weights, 3))
        lookups.push(lookup, np.ones_like(lookup.values))


def test_an_empty_bag_is_a_zero_vector():
    lookups, _ = placed(row_options(3))
    assert not lookups.pull(bags_of([[[], [], []], [[], [3], []]])).values[[0, 0, 0, 1, 1], [0, 1, 2, 0, 2]].any()


def test_a_bad_id_is_named_with_its_row_and_feature():
    lookups, _ = placed(row_options(3))
    with pytest.raises(TrainingError, match=r"id 7 of feature C2 \(row 1 of its batch\) is beyond its table of 7 rows"):
        lookups.pull(bags_of([[[1, 2], [], [5]], [[], [6, 7], []]], first=4))
    lookups.pull(bags_of([[[1], [2], [3]]]))  # and the next batch is found
