"""Split arithmetic and the counter-based shuffle: pure functions of row numbers."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_prep.splits import ShardLayout, draw_shards, parse_fractions, permutation, split_rows
from ssmpi.runtime.errors import UserError


def test_kaggle_is_cut_as_dlrm_cuts_it():
    ranges = split_rows("kaggle", [45_840_617])
    assert ranges["train"] == (0, 4 * 6_548_660 + 2 * 6_548_659)
    assert ranges["test"] == (39_291_958, 39_291_958 + 3_274_330)
    assert ranges["validation"] == (39_291_958 + 3_274_330, 45_840_617)


def test_terabyte_is_cut_in_the_middle_of_the_last_day():
    rows = [190_000_000] * 22 + [4_195_197_692 - 22 * 190_000_000, 178_274_637]
    ranges = split_rows("days", rows)
    assert ranges["train"] == (0, 4_195_197_692)
    assert ranges["test"] == (4_195_197_692, 4_195_197_692 + 89_137_319)
    assert ranges["validation"] == (4_195_197_692 + 89_137_319, 4_373_472_329)


@given(st.integers(1, 3000))
def test_kaggle_agrees_with_array_split_for_any_number_of_rows(total):
    size, extras = divmod(total, 7)
    days = [size + (j < extras) for j in range(7)]
    last = np.arange(total)[sum(days[:6]) :]
    test, validation = np.array_split(last, 2)
    expected = {"train": np.arange(sum(days[:6])), "validation": validation, "test": test}
    found = split_rows("kaggle", [total])
    assert {k: list(range(*v)) for k, v in found.items()} == {k: v.tolist() for k, v in expected.items() if len(v)}


@given(st.integers(1, 10**6), st.sampled_from(["0.8,0.1,0.1", "1", "0.5,0.5", "0.9,0,0.1"]))
def test_fractions_cover_all_rows_once(total, text):
    ranges = sorted(split_rows(text, [total]).values())
    assert ranges[0][0] == 0
    assert ranges[-1][1] == total
    assert all(a[1] == b[0] for a, b in itertools.pairwise(ranges))


def test_none_puts_all_rows_in_one_split():
    assert split_rows("none", [3, 4], "test") == {"test": (0, 7)}


@pytest.mark.parametrize("text", ["0.8,0.1", "a,b", "0.5,0.2,0.2,0.1", "1.5,-0.5", "week"])
def test_wrong_fractions_are_refused(text):
    with pytest.raises(UserError, match="--split"):
        parse_fractions(text)


def layout(rows=10_000, shard_rows=1000, seed=3, shuffle=True):
    return ShardLayout({"train": (0, rows), "test": (rows, rows + 2500)}, shard_rows, seed, shuffle)


def test_every_row_goes_to_one_shard_whoever_asks():
    whole = layout().shard_of(0, 12_500)
    pieces = [layout().shard_of(a, min(a + 777, 12_500)) for a in range(0, 12_500, 777)]
    np.testing.assert_array_equal(np.concatenate(pieces), whole)
    assert len(layout().targets()) == 13
    np.testing.assert_array_equal(whole[10_000:], 10 + np.arange(2500) // 1000)


def test_buckets_are_even_and_depend_on_the_seed():
    counts = np.bincount(layout(rows=100_000, shard_rows=10_000).shard_of(0, 100_000), minlength=10)
    assert counts.min() > 9500
    assert counts.max() < 10_500
    assert (layout(seed=4).shard_of(0, 10_000) != layout().shard_of(0, 10_000)).mean() > 0.8


def test_without_shuffle_rows_stay_in_order():
    np.testing.assert_array_equal(layout(shuffle=False).shard_of(0, 10_000), np.arange(10_000) // 1000)


def test_the_draws_of_released_data_sets_never_change():
    shards = np.empty(12, dtype=np.int32)
    draw_shards(7, 100, 5, shards)
    assert permutation(0, 0, 10).tolist() == [7, 6, 3, 9, 5, 4, 0, 1, 8, 2]
    assert permutation(7, 3, 5).tolist() == [4, 2, 3, 1, 0]
    assert shards.tolist() == [0, 1, 4, 4, 0, 3, 2, 4, 1, 3, 0, 1]


@pytest.mark.parametrize("rows", [0, 1, 2, 77, 100_000])
def test_a_permutation_has_every_row_once(rows):
    np.testing.assert_array_equal(np.sort(permutation(5, 2, rows)), np.arange(rows))


def test_permutations_are_uniform_over_seeds_and_over_shards():
    for draws in ([permutation(seed, 1, 4) for seed in range(24_000)], [permutation(1, k, 4) for k in range(24_000)]):
        _, counts = np.unique(draws, axis=0, return_counts=True)
        assert len(counts) == 24
        assert np.sum((counts - 1000.0) ** 2) / 1000 < 50  # chi-square, 23 degrees of freedom: one in a thousand
    order = permutation(3, 4, 100_000).astype(float)
    assert abs(np.corrcoef(order, np.arange(100_000))[0, 1]) < 0.02
    assert abs(np.corrcoef(order[1:], order[:-1])[0, 1]) < 0.02
