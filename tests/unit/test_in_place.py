"""Averages in one pass over several replicas are those in passes over whole vectors, to the bit."""

import numpy as np
import pytest

from ssmpi.sync.base import merge_difference, merge_interpolate
from ssmpi.sync.bmuf import filter_mean, move_filtered
from ssmpi.sync.in_place import BLOCK, Replicas, average

SIZE, PART = 2 * BLOCK + 77, (5, 2 * BLOCK + 66)  # three blocks, the last one short
ALPHA = 0.3


def vectors(number, seed=0):
    return list(np.random.default_rng(seed).normal(size=(number, SIZE)).astype(np.float32))


def mean_of(replicas, counts):
    """In the order of the replicas, float32."""
    total = np.zeros(SIZE, np.float32)
    for replica, counted in zip(replicas, counts, strict=True):
        if counted:
            total += replica
    return total / np.float32(sum(counts))


def expected(replicas, reference, difference):
    """A part of each, moved by the kernels of the message path."""
    moved, part = [replica.copy() for replica in replicas], slice(*PART)
    for weights, snapshot in zip(moved, replicas, strict=True):
        merge = merge_difference if difference else merge_interpolate
        merge(weights[part], reference[part], snapshot[part], ALPHA)
    return moved


@pytest.mark.parametrize("difference", [True, False])
@pytest.mark.parametrize("counts", [[True], [True, True], [False, True, True], [True, False, False, True, True]])
def test_replicas_move_towards_the_mean_of_those_that_count(counts, difference):
    live = vectors(len(counts))
    wanted = expected(live, mean_of(live, counts), difference)
    own = Replicas(live)
    average(own.addresses, np.array(counts), PART, own.room, ALPHA, difference)
    for found, each in zip(live, wanted, strict=True):
        np.testing.assert_array_equal(found, each)


@pytest.mark.parametrize("difference", [True, False])
@pytest.mark.parametrize("ahead", [0.0, 0.6])
def test_replicas_move_towards_the_filtered_mean(ahead, difference):
    live, kept, counts = vectors(3), tuple(vectors(3, seed=1)), [True, False, True]
    coefficients, part = (0.7, 0.6, ahead), slice(*PART)
    filtered = tuple(values.copy() for values in kept)
    filter_mean(mean_of(live, counts)[part], *(values[part] for values in filtered), coefficients)
    wanted = expected(live, filtered[2], difference)
    own = Replicas(live)
    move_filtered((own.addresses, np.array(counts), own.room), PART, kept, coefficients, ALPHA, difference)
    for found, each in zip((*live, *kept), (*wanted, *filtered), strict=True):
        np.testing.assert_array_equal(found, each)
