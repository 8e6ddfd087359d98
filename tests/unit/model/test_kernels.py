"""The compiled inner loops against plain numpy."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import initial_row, initial_tables
from rows import row_options

from ssmpi.embedding import kernels
from ssmpi.embedding.placement import place
from ssmpi.embedding.row_optimizers import grouped_adagrad, rowwise_adagrad, sgd
from ssmpi.embedding.table import Arena
from ssmpi.runtime.compiled.aligned import aligned


@pytest.fixture
def generator():
    return np.random.default_rng(3)


def normal(generator, *shape):
    return generator.normal(size=shape).astype(np.float32)


def test_initial_rows_are_those_of_the_formula():
    out = np.empty((5, 7), np.float32)
    kernels.initial_rows(out, 42, 3, 100, 9, 0.25)
    expected = [initial_row(42, 3, 100 + 9 * r, 7, cardinality=16) for r in range(5)]
    np.testing.assert_array_equal(out, np.array(expected, np.float32))


@settings(max_examples=25)
@given(st.lists(st.integers(1, 60), min_size=1, max_size=6), st.integers(1, 5), st.integers(0, 2**31 - 1))
def test_initial_rows_do_not_depend_on_placement(cardinalities, servers, seed):
    plan = place(cardinalities, servers)
    tables = initial_tables(seed, cardinalities, 4)
    for server in range(servers):
        arena = Arena(row_options(dim=4), plan, server, seed)
        for p in arena.parts:
            np.testing.assert_array_equal(arena.weights[p.base : p.base + p.rows], tables[p.table][p.first :: p.stride])


def test_initial_rows_are_uniform_and_uncorrelated():
    rows = np.empty((20_000, 8), np.float32)
    kernels.initial_rows(rows, 1, 0, 0, 1, 1.0)
    counts, _ = np.histogram(rows, bins=50, range=(-1, 1))
    chi_square = np.sum((counts - rows.size / 50) ** 2) / (rows.size / 50)
    assert chi_square < 86  # 49 degrees of freedom: one in a thousand
    assert np.abs(rows).max() < 1
    neighbours = [np.corrcoef(rows[:-1].ravel(), rows[1:].ravel())[0, 1], np.corrcoef(rows[:, 0], rows[:, 1])[0, 1]]
    np.testing.assert_allclose(neighbours, 0, atol=0.03)


def test_tables_and_seeds_have_rows_of_their_own():
    seen = set()
    for seed in (0, 1, 2):
        for table in range(26):
            out = np.empty((50, 4), np.float32)
            kernels.initial_rows(out, seed, table, 0, 1, 1.0)
            seen |= {row.tobytes() for row in out}
    assert len(seen) == 3 * 26 * 50


def test_gather(generator):
    weights, rows = normal(generator, 20, 5), generator.integers(0, 20, 33).astype(np.int32)
    out = np.empty((33, 5), np.float32)
    kernels.gather(weights, rows, out)
    np.testing.assert_array_equal(out, weights[rows])


@pytest.mark.parametrize(("shape", "kind"), [((1,), np.uint8), ((3,), np.uint16), ((1_500_000,), np.float32)])
def test_aligned_arrays_begin_with_a_line_and_can_be_written_to_the_end(shape, kind):
    made = [aligned(shape, kind) for _ in range(5)]  # allocators give one such address by chance
    for number, array in enumerate(made):
        assert (array.shape, array.dtype, array.ctypes.data % 64) == (shape, kind, 0)
        array.fill(number)
    assert all((array == number).all() for number, array in enumerate(made))


def test_updates_of_many_rows_ask_for_none_that_is_not_there(generator):
    """More rows than are asked for ahead, the last of the memory among them, each wider than a cache line."""
    weights, gradients = normal(generator, 40, 17), normal(generator, 40, 17)
    rows = generator.permutation(40).astype(np.int32)
    expected = weights.copy()
    expected[rows] -= np.float32(0.1) * gradients
    sgd(weights, rows, gradients, 0.1, 0)
    np.testing.assert_allclose(weights, expected, rtol=1e-5, atol=1e-6)


def test_sgd_counts_every_occurrence(generator):
    weights, gradients = normal(generator, 9, 4), normal(generator, 30, 4)
    rows = generator.integers(0, 9, 30).astype(np.int32)
    expected = weights.astype(float)
    np.subtract.at(expected, rows, 0.1 * gradients.astype(float))
    sgd(weights, rows, gradients, 0.1, 0)
    np.testing.assert_allclose(weights, expected, rtol=1e-5, atol=1e-6)


def test_rowwise_adagrad(generator):
    weights, state = normal(generator, 9, 4), np.full(9, 0.5, np.float32)
    expected, sums = weights.astype(float), state.astype(float)
    for _ in range(5):
        rows, gradients = generator.permutation(9)[:6].astype(np.int32), normal(generator, 6, 4)
        sums[rows] += (gradients.astype(float) ** 2).mean(axis=1)
        expected[rows] -= 0.1 * gradients / (np.sqrt(sums[rows]) + 1e-8)[:, None]
        rowwise_adagrad(weights, state, rows, gradients, 0.1, 1e-8, 0)
    np.testing.assert_allclose(weights, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(state, sums, rtol=1e-6)


def test_vector_and_weight_have_an_accumulator_each(generator):
    """Both as ``test_rowwise_adagrad`` has it, each over its own columns."""
    weights, state = normal(generator, 9, 5), np.full((9, 2), 0.5, np.float32)
    expected, sums = weights.astype(float), state.astype(float)
    for _ in range(5):
        rows, gradients = generator.permutation(9)[:6].astype(np.int32), normal(generator, 6, 5)
        for group, columns in enumerate((slice(0, 4), slice(4, 5))):
            own = gradients[:, columns].astype(float)
            sums[rows, group] += (own**2).mean(axis=1)
            expected[rows, columns] -= 0.1 * own / (np.sqrt(sums[rows, group]) + 1e-8)[:, None]
        grouped_adagrad(weights, state, rows, gradients, 0.1, 1e-8, 0)
    np.testing.assert_allclose(weights, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(state, sums, rtol=1e-6)


def test_first_order_weights_begin_at_zero_and_change_no_vector():
    plain, weighted = (Arena(row_options(dim=4, weight=w), place((50,), 1), 0, seed=3) for w in (False, True))
    np.testing.assert_array_equal(weighted.weights[:, :4], plain.weights)
    assert not weighted.weights[:, 4].any()
    assert weighted.state.shape == (50, 2)
    assert weighted.options.row_bytes == 4 * (5 + 2)


def test_rowwise_adagrad_with_gradient_zero_from_state_zero_is_no_step():
    weights, state = np.ones((1, 3), np.float32), np.zeros(1, np.float32)
    rowwise_adagrad(weights, state, np.array([0], np.int32), np.zeros((1, 3), np.float32), 0.1, 1e-8, 0)
    np.testing.assert_array_equal(weights, 1)


def test_out_of_range():
    rows = np.array([0, 4, 5, -1], np.int32)
    assert kernels.out_of_range(rows, 6) == 3
    assert kernels.out_of_range(rows, 5) == 2
    assert kernels.out_of_range(rows[:2], 5) == -1


def route(ids, plan, hash_table=None):
    """Rows by PS, where each id's row went, and the hash table that was used."""
    n = ids.size
    slots = 1 << (2 * n - 1).bit_length()
    keys, places = hash_table or (np.full(slots, kernels.EMPTY, np.int64), np.empty(slots, np.int32))
    rows, inverse, starts = np.empty(n, np.int32), np.empty(n, np.int32), np.zeros(plan.servers + 1, np.int64)
    tables, no_bags = (plan.limits, plan.strides, plan.owners, plan.bases), np.empty(0, np.int64)
    bad = kernels.route(ids.reshape(-1), no_bags, tables, (keys, places), rows, inverse, starts)
    return bad, rows, inverse, starts, (keys, places)


@given(st.data())
def test_route_finds_every_id_once(data):
    cardinalities = data.draw(st.lists(st.integers(1, 40), min_size=1, max_size=6))
    plan = place(cardinalities, data.draw(st.integers(1, 4)))
    generator = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    hash_table = None
    slots = 1 << (2 * 13 * len(cardinalities) - 1).bit_length()
    hash_table = (np.full(slots, kernels.EMPTY, np.int64), np.empty(slots, np.int32))
    for batch in (13, 1, 7):  # the hash table is used again, also by smaller batches
        ids = (generator.random((batch, len(cardinalities))) * cardinalities).astype(np.int32)
        bad, rows, inverse, starts, hash_table = route(ids, plan, hash_table)
        assert bad == -1
        assert np.all(hash_table[0] == kernels.EMPTY)
        place_of = {
            (p.table, id_): (p.owner, p.base + k) for p in plan.parts
            for k, id_ in enumerate(range(p.first, cardinalities[p.table], p.stride))
        }  # fmt: skip
        expected = [place_of[f, id_] for row in ids.tolist() for f, id_ in enumerate(row)]
        unique = rows[: starts[-1]]
        owners = np.repeat(np.arange(plan.servers), np.diff(starts))
        found = list(zip(owners.tolist(), unique.tolist(), strict=True))
        assert len(set(found)) == len(found) == len(set(expected))
        assert [found[k] for k in inverse] == expected


@pytest.mark.parametrize("bad_id", [-1, 10, 2**31 - 1, -(2**31)])
def test_route_refuses_ids_beyond_their_table_and_leaves_a_clean_slate(bad_id):
    plan = place([10, 20], 2)
    ids = np.array([[1, 2], [3, 4], [bad_id, 5]], np.int32)
    bad, *_, (keys, _) = route(ids, plan)
    assert bad == 4
    assert np.all(keys == kernels.EMPTY)


def test_gather_and_sum_by_row_are_each_others_transpose(generator):
    inverse = generator.integers(0, 6, 40).astype(np.int32)
    unique, gradients = normal(generator, 6, 3), normal(generator, 40, 3)
    out, summed = np.empty((40, 3), np.float32), np.full((6, 3), np.nan, np.float32)
    kernels.gather(unique, inverse, out)
    kernels.sum_by_row(gradients, inverse, np.empty(0, np.int64), np.empty(0, np.float32), summed)
    np.testing.assert_array_equal(out, unique[inverse])
    expected = np.zeros((6, 3))
    np.add.at(expected, inverse, gradients.astype(float))
    np.testing.assert_allclose(summed, expected, rtol=1e-5, atol=1e-6)
    assert np.vdot(out, gradients) == pytest.approx(np.vdot(unique, summed), rel=1e-4)
