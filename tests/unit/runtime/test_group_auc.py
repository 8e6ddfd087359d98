"""GAUC against a count of pairs in plain Python."""

import math
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ssmpi.runtime.quality import SCORE, group_auc_sums

ROWS = st.lists(st.tuples(st.integers(2, 5), st.sampled_from([-1.5, 0.0, 0.25, 2.0]), st.booleans()), max_size=40)


def by_pairs(rows):
    """Sum of rows times AUC, and of rows, over groups with both labels."""
    weighted = total = 0.0
    for group in {group for group, _, _ in rows}:
        clicked, rest = ([x for g, x, label in rows if g == group and label == wanted] for wanted in (True, False))
        if clicked and rest:
            right = sum(1.0 if high > low else 0.5 if high == low else 0.0 for high, low in product(clicked, rest))
            weighted += (len(clicked) + len(rest)) * right / (len(clicked) * len(rest))
            total += len(clicked) + len(rest)
    return weighted, total


@given(ROWS)
def test_it_counts_pairs_within_groups(rows):
    np.testing.assert_allclose(group_auc_sums(np.array(rows, SCORE)), by_pairs(rows), rtol=1e-12)


def test_groups_of_one_label_are_left_out():
    rows = [(2, 0.1, 1), (2, 0.3, 1), (3, 0.5, 0), (4, 0.2, 0), (4, 0.4, 1), (4, 0.6, 0)]
    np.testing.assert_array_equal(group_auc_sums(np.array(rows, SCORE)), [1.5, 3])


@pytest.mark.parametrize("logit", [math.nan, math.inf])
def test_a_logit_that_is_not_finite_gives_nan(logit):
    assert np.isnan(group_auc_sums(np.array([(2, 0.1, 1), (2, logit, 0)], SCORE))).all()
