"""Averages in one pass over several replicas are those in passes over whole vectors, to the bit."""

import numpy as np
import pytest

from ssmpi.sync.base import merge_difference
from ssmpi.sync.bmuf import move_filtered
from ssmpi.sync.host_team import BLOCK, Replicas, average

SIZE, PART = 2 * BLOCK + 77, 2 * BLOCK + 66  # three blocks, the last one short
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


def expected(replicas, reference):
    """The first part of each, moved by the kernel of the message path."""
    moved = [replica.copy() for replica in replicas]
    for weights, snapshot in zip(moved, replicas, strict=True):
        merge_difference(weights[:PART], reference[:PART], snapshot[:PART], ALPHA)
    return moved


@pytest.mark.parametrize("counts", [[True], [True, True], [False, True, True], [True, False, False, True, True]])
def test_replicas_move_towards_the_mean_of_those_that_count(counts):
    live = vectors(len(counts))
    wanted = expected(live, mean_of(live, counts))
    own = Replicas(live)
    average(own.addresses, np.array(counts), PART, own.blocks, ALPHA)
    for found, each in zip(live, wanted, strict=True):
        np.testing.assert_array_equal(found, each)


def filtered(mean, kept, eta, momentum, ahead):
    """Block momentum as its paper has it, float32."""
    model, delta, reference = kept
    delta = np.float32(momentum) * delta + np.float32(eta) * (mean - reference)
    return model + delta, delta, model + delta + np.float32(ahead) * delta


@pytest.mark.parametrize(("momentum", "ahead"), [(0.0, 0.0), (0.6, 0.0), (0.6, 0.6)])
def test_replicas_move_towards_the_filtered_mean(momentum, ahead):
    live, counts = vectors(3), [True, False, True]
    model, delta, reference = vectors(3, seed=1)
    if not ahead:
        reference = model
    wanted = [values.copy() for values in (model, delta, reference)]
    for each, found in zip(
        wanted, filtered(mean_of(live, counts), (model, delta, reference), 0.7, momentum, ahead), strict=True
    ):
        each[:PART] = found[:PART]
    if not momentum:
        wanted[1] = delta.copy()  # nobody needs it
    moved = expected(live, wanted[2])
    own = Replicas(live)
    move_filtered(
        (own.addresses, np.array(counts), own.blocks), PART, (model, delta, reference), (0.7, momentum, ahead), ALPHA,
    )  # fmt: skip
    for found, each in zip((*live, model, delta, reference), (*moved, *wanted), strict=True):
        np.testing.assert_array_equal(found, each)
