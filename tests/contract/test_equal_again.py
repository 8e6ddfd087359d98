"""What must be the same on all trainers is made so after a kill, from the trainer that was furthest ahead."""

import numpy as np
from ranks import Pairs, over_threads
from sync_bodies import WAITING, on_trainers, options

from ssmpi import sync
from ssmpi.core.topology import Topology
from ssmpi.data.position import Position
from ssmpi.data.trained_rows import Deal
from ssmpi.recovery.surviving import WarmState


def kept(warming_up):
    return WarmState({}, Deal(1, 0, Position(0)), [], furthest=1, warming_up=warming_up)


def make_equal(world, settings, warming_up):
    """A body: weights and the algorithm's arrays of a trainer that differed from all others."""
    weights = np.full(1_003, world.rank, np.float32)

    def work(synchronizers):
        own = synchronizers[0]
        for values in own.common():
            values[:] = 10 + world.rank
        kept(warming_up).make_equal(own, world, WAITING, ())
        return own.weights[0], [values[0] for values in own.common()]

    return on_trainers(world, settings, weights, work, sync.LocalTrainer(np.zeros(1, np.int64)))


def over_trainers(algorithm, pace="shadow", warming_up=False, topology=None):
    settings, topology = options(algorithm, pace, transport="messages"), topology or Topology(trainers=3)
    return over_threads(topology, make_equal, settings, warming_up)[: topology.trainers]


def test_replicas_that_step_together():
    assert [found[0] for found in over_trainers("synchronous", "fixed_rate")] == [11.0] * 3


def test_the_global_model_and_its_momentum():
    found = over_trainers("bmuf")
    assert [each for _, each in found] == [[11.0] * 3] * 3
    assert [weights for weights, _ in found] == [0.0, 1.0, 2.0]  # replicas are each trainer's own


def test_algorithms_without_common_state_are_left_alone():
    assert over_trainers("ma") == [(0.0, []), (1.0, []), (2.0, [])]


def test_a_warm_up_that_was_cut_short_ends_with_equal_replicas():
    """And the algorithm begins with them."""
    assert over_trainers("slowmo", warming_up=True) == [(1.0, [1.0, 0.0])] * 3


def test_each_member_gets_the_state_of_its_counterpart():
    """Of the replica that trainer 1 holds with trainer 0."""
    found = over_trainers("bmuf", topology=Pairs(trainers=4))
    assert [each for _, each in found] == [[10.0] * 3, [11.0] * 3] * 2
