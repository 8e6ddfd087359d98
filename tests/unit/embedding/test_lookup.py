"""One batch's pull and push as one compiled call each, against plain numpy, wherever its rows are."""

import itertools

import numpy as np
import pytest
from rows import row_options, tables_of

from ssmpi.embedding import kernels
from ssmpi.embedding.client import Lookups
from ssmpi.embedding.placement import place
from ssmpi.embedding.table import Arena
from ssmpi.runtime.errors import TrainingError

CARDINALITIES, BATCH = (40, 7, 90), 11
OPTIONS = {
    "sgd": row_options(4, optimizer="sgd"),
    "rowwise_adagrad": row_options(4),
    "vectors and weights": row_options(4, weight=True),
    "weights alone": row_options(0, weight=True),
}


def placed(options, mapped_ones=(0, 1), names=()):
    """Lookups over two PSs, and their arenas."""
    placement = place(CARDINALITIES, 2, names=names)
    arenas = [Arena(options, placement, server, seed=3) for server in range(2)]
    return Lookups(tables_of(arenas, mapped_ones), thread=0), arenas


def ids_of(generator, batch=BATCH):
    return np.stack([generator.integers(0, rows, batch) for rows in CARDINALITIES], axis=1).astype(np.int32)


def whole_table(arenas, table):
    """One table, put together from its stripes."""
    out = np.empty((CARDINALITIES[table], arenas[0].weights.shape[1]), np.float32)
    for arena in arenas:
        for part in arena.parts:
            if part.table == table:
                out[part.first :: part.stride] = arena.weights[part.base : part.base + part.rows]
    return out


MAPPED = [(), (0,), (1,), (0, 1)]


@pytest.mark.parametrize("mapped_ones", MAPPED, ids=str)
@pytest.mark.parametrize("name", OPTIONS)
def test_what_is_pulled_is_what_the_tables_hold(name, mapped_ones):
    generator = np.random.default_rng(1)
    lookups, arenas = placed(OPTIONS[name], mapped_ones)
    for batch in (BATCH, 3, BATCH, 1, 2 * BATCH):  # smaller ones use a part of the room
        ids = ids_of(generator, batch)
        lookup = lookups.pull(ids)
        expected = np.stack([whole_table(arenas, t)[ids[:, t]] for t in range(len(CARDINALITIES))], axis=1)
        np.testing.assert_array_equal(lookup.values, expected)
        assert lookup.unique_count == sum(len(np.unique(ids[:, t])) for t in range(len(CARDINALITIES)))


def updated_one_by_one(options, arenas, ids, gradients, factor):
    """Each row once, by the sum of its gradients in the order of the batch, as the formulas have it; float64."""
    expected = [whole_table(arenas, t).astype(float) for t in range(len(CARDINALITIES))]
    settings, vector = options.settings, options.layout.vector
    columns = [slice(0, vector)] * bool(vector) + [slice(vector, vector + 1)] * options.layout.weight
    for table, rows in enumerate(expected):
        for row, group in itertools.product(np.unique(ids[:, table]), columns):
            gradient = gradients[ids[:, table] == row, table, group].astype(float).sum(axis=0)
            step = settings.rate * factor
            if settings.optimizer == "rowwise_adagrad":
                step /= np.sqrt(settings.initial_state + np.mean(gradient**2)) + settings.epsilon
            rows[row, group] -= step * gradient
    return expected


@pytest.mark.parametrize("mapped_ones", MAPPED, ids=str)
@pytest.mark.parametrize("name", OPTIONS)
def test_a_push_updates_each_row_once_by_the_sum_of_its_gradients(name, mapped_ones):
    generator, options = np.random.default_rng(2), OPTIONS[name]
    lookups, arenas = placed(options, mapped_ones)
    ids = ids_of(generator)
    lookup = lookups.pull(ids)
    gradients = generator.normal(size=lookup.values.shape).astype(np.float32)
    expected = updated_one_by_one(options, arenas, ids, gradients, 0.5)
    lookups.push(lookup, gradients, 0.5)
    for table, values in enumerate(expected):
        np.testing.assert_allclose(whole_table(arenas, table), values, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("name", OPTIONS)
def test_reach_changes_no_bit(name):
    """One call for all, or sums that are applied apart, PS by PS; at a factor that float32 holds, as messages do."""
    found = []
    for mapped_ones in MAPPED:
        generator = np.random.default_rng(4)
        lookups, arenas = placed(OPTIONS[name], mapped_ones)
        for _ in range(3):
            lookup = lookups.pull(ids_of(generator))
            lookups.push(lookup, generator.normal(size=lookup.values.shape).astype(np.float32), 0.75)
        found.append(b"".join(array.tobytes() for arena in arenas for array in (arena.weights, arena.state)))
    assert len(set(found)) == 1


def test_a_prefetched_row_is_as_old_as_its_request():
    """Rows within reach are those of the moment of asking, as those of a message are."""
    lookups, arenas = placed(OPTIONS["sgd"])
    ids = ids_of(np.random.default_rng(5))
    asked = lookups.ask(ids)
    before = whole_table(arenas, 0)[ids[:, 0]]
    for arena in arenas:
        arena.weights += 1.0
    np.testing.assert_array_equal(lookups.arrive(asked).values[:, 0], before)


def test_a_bad_id_is_named_and_leaves_the_lookups_usable():
    lookups, arenas = placed(OPTIONS["sgd"], names=[f"name {table}" for table in range(len(CARDINALITIES))])
    ids = ids_of(np.random.default_rng(6))
    wrong = ids.copy()
    wrong[4, 1] = 7
    with pytest.raises(TrainingError, match=r"id 7 of feature name 1 \(row 4"):
        lookups.ask(wrong)
    np.testing.assert_array_equal(lookups.pull(ids).values[:, 1], whole_table(arenas, 1)[ids[:, 1]])


def test_occurrences_count_the_batch_and_not_the_room():
    lookups, _ = placed(OPTIONS["sgd"])
    generator = np.random.default_rng(7)
    lookups.pull(ids_of(generator))
    lookups.pull(ids_of(generator))
    lookup = lookups.pull(ids_of(generator, 4))
    assert lookup.occurrences().sum() == 4 * len(CARDINALITIES)
    assert len(lookup.occurrences()) == lookup.unique_count == lookup.parts[-1].stop
    assert kernels.out_of_range(lookup.rows[lookup.parts[0]], 137) == -1
