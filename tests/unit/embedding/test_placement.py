"""Every row of every table is on exactly one PS, and no PS has much more to do than another."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ssmpi.embedding.placement import place
from ssmpi.runtime.errors import TopologyError

tables = st.lists(st.integers(1, 300) | st.integers(1_000, 5_000), min_size=1, max_size=30)
servers = st.integers(1, 12)


@given(tables, servers)
def test_every_row_has_one_place(cardinalities, count):
    plan = place(cardinalities, count)
    arenas = [np.zeros(plan.rows_of(server), int) for server in range(count)]
    for table, rows in enumerate(cardinalities):
        parts = [p for p in plan.parts if p.table == table]
        ids = np.concatenate([np.arange(p.first, rows, p.stride) for p in parts])
        assert sorted(ids) == list(range(rows))
        for part in parts:
            assert part.rows == len(range(part.first, rows, part.stride)) > 0
            arenas[part.owner][part.base : part.base + part.rows] += 1
    assert all(np.all(arena == 1) for arena in arenas)  # no gap, no overlap


@given(tables, servers)
def test_the_arrays_for_routing_say_the_same_as_the_parts(cardinalities, count):
    plan = place(cardinalities, count)
    assert plan.limits.tolist() == cardinalities
    for p in plan.parts:
        assert plan.strides[p.table] == p.stride
        assert (plan.owners[p.table, p.first], plan.bases[p.table, p.first]) == (p.owner, p.base)


@given(tables, servers)
def test_no_server_is_far_above_the_others(cardinalities, count):
    """Longest processing time first: a server exceeds the mean by at most the largest piece there is."""
    plan = place(cardinalities, count)
    ideal_rows, ideal_lookups = sum(cardinalities) / count, len(cardinalities) / count
    piece = max(max(p.rows / ideal_rows, 1 / p.stride / ideal_lookups) for p in plan.parts)
    load = [max(plan.rows_of(s) / ideal_rows, plan.lookups_of(s) / ideal_lookups) for s in range(count)]
    assert max(load) <= 2 + piece  # two sums, memory and lookups, each at most 1 in the mean
    assert sum(plan.lookups_of(s) for s in range(count)) == pytest.approx(len(cardinalities))


@pytest.mark.parametrize("count", [2, 3, 4, 8])
def test_criteo_spreads_well(count):
    kaggle = (1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194, 27, 14992, 5461306, 10,
              5652, 2173, 4, 7046547, 18, 15, 286181, 105, 142572)  # fmt: skip
    plan = place(kaggle, count)
    rows, lookups = ([f(s) for s in range(count)] for f in (plan.rows_of, plan.lookups_of))
    assert max(rows) <= 1.2 * sum(kaggle) / count
    assert max(lookups) <= 1.2 * 26 / count


def test_a_large_table_is_cut_into_stripes_of_frequent_and_rare_ids():
    plan = place([10, 1_000, 10], 3)
    parts = [p for p in plan.parts if p.table == 1]
    assert {(p.first, p.stride) for p in parts} == {(0, 3), (1, 3), (2, 3)}
    assert {p.owner for p in parts} == {0, 1, 2}


@given(tables, servers)
def test_the_plan_is_the_same_wherever_it_is_made(cardinalities, count):
    assert place(cardinalities, count) == place(list(cardinalities), count)


def test_more_rows_than_a_server_can_number_are_refused():
    with pytest.raises(TopologyError, match=r"topology\.embedding_ps = 3 or more"):
        place([2**31, 2**31, 2**20], 1)
