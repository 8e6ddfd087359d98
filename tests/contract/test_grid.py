"""Trainers as a grid: rounds join the same member of every replica, in whatever groups trainers hold one."""

import numpy as np
import pytest
from ranks import Pairs, over_mpi, over_threads
from sync_bodies import meet, on_trainers, options


def one_round(world, options):
    """A body: whom a trainer meets, what it has after a round, the common model, and bytes sent to trainers."""
    weights = np.full(1_003, 10.0**world.rank, np.float32)

    def work(synchronizers):
        own = synchronizers[0]
        world.traffic.on = True
        own.round()
        world.traffic.on = False
        meet(world)
        return own.context.replicas.names, weights[0], own.model()[0], world.traffic.by_name()["bytes_trainers"]

    return on_trainers(world, options, weights, work)


@pytest.mark.parametrize("run", [over_threads, over_mpi])
def test_members_meet_the_same_member_of_the_other_replica(run):
    found = run(Pairs(trainers=4), one_round, options("ma", alpha=1.0, transport="messages"))[:4]
    evens, odds = ("trainer 0", "trainer 2"), ("trainer 1", "trainer 3")
    sent = 4.0 * 1_004  # an all-reduce of two: the vector with its weight
    assert found == [(evens, 50.5, 50.5, sent), (odds, 505.0, 505.0, sent)] * 2
