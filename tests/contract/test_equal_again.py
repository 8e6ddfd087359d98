"""What must be the same on all trainers is made so after a kill, from the trainer that was furthest ahead."""

from types import SimpleNamespace

import numpy as np
import pytest
from ranks import over_threads
from sync_bodies import WAITING, mapped, meet, on_trainers, options

from ssmpi import sync
from ssmpi.data.position import Position
from ssmpi.data.trained_rows import Deal
from ssmpi.runtime.topology import Topology
from ssmpi.state.recovery.start import Repair
from ssmpi.state.recovery.warm_state import WarmState, furthest


def kept(furthest, lost, servers=()):
    ranks = dict.fromkeys((*lost, *servers), 2)
    repair = Repair(ranks=ranks, trainers=frozenset(lost), sync_ps=frozenset(servers)) if ranks else None
    return WarmState({}, Deal(1, 0, Position(0)), [], furthest=furthest, repair=repair)


def make_equal(world, settings, furthest, lost=()):
    """A body: weights and the algorithm's arrays of a trainer that differed from all others."""
    weights = mapped(world, settings, np.full(1_003, world.rank, np.float32))

    def work(synchronizers):
        own = synchronizers[0]
        for values in own.common() if own.exchange.leads else ():
            values[:] = 10 + world.rank
        meet(world)
        kept(furthest, lost).make_equal(own, world, WAITING, None)
        meet(world)
        return own.weights[0], [values[0] for values in own.common()]

    return on_trainers(world, settings, weights, work, sync.LocalTrainer(np.zeros(1, np.int64)))


def over_trainers(algorithm, pace="shadow"):
    settings = options(algorithm, pace, shared_memory=False)
    return over_threads(Topology(3), make_equal, settings, [1])[:3]


def over_groups(*arguments, shared_memory=False):
    return over_threads(Topology(4, group=2), make_equal, options("bmuf", shared_memory=shared_memory), *arguments)[:4]


def test_replicas_that_step_together():
    assert [found[0] for found in over_trainers("synchronous", "fixed_rate")] == [11.0] * 3


def test_the_global_model_and_its_momentum():
    found = over_trainers("bmuf")
    assert [each for _, each in found] == [[11.0] * 3] * 3
    assert [weights for weights, _ in found] == [0.0, 1.0, 2.0]  # replicas are each trainer's own


def test_algorithms_without_common_state_are_left_alone():
    assert over_trainers("ma") == [(0.0, []), (1.0, []), (2.0, [])]


def test_each_member_gets_the_state_of_its_counterpart():
    found = over_groups([0, 1])
    assert [each for _, each in found] == [[10.0] * 3, [13.0] * 3] * 2


def test_the_furthest_of_each_member():
    topology = Topology(6, group=2)
    assert furthest(topology, [3, 1, 5, 0, 5, 2], frozenset()) == [1, 2]
    assert furthest(topology, [3, -1, 5, 0, 9, 2], {1}) == [0, 1]
    assert furthest(Topology(3), [3, 5, 5], frozenset()) == [1]


def join_center(world, settings, lost, servers=()):
    """A body: what trainers have after some were lost, and their optimizers' sums, if the center is 10 or 11; and both
    ends of the center then.
    """
    weights, sums = np.full(1_003, 10.0 + world.rank, np.float32), np.full(3, world.rank, np.float32)

    def work(synchronizers):
        own = synchronizers[0]
        own.context.local.optimizer = SimpleNamespace(state=lambda: {"sums": sums})
        kept([0, 0], lost, servers).make_equal(own, world, WAITING, None)
        return own.weights[0], sums[0], own.model()[[0, -1]].tolist()

    return on_trainers(world, settings, weights, work)


def test_members_that_no_group_has_any_more_get_their_center():
    """And their optimizers begin anew; a lost trainer that has a twin gets the twin's sums."""
    groups = Topology(4, 1, 1, 2, group=2)
    settings = options("easgd", shared_memory=False)
    found = over_threads(groups, join_center, settings, (1, 3))[:4]
    assert [each[:2] for each in found] == [(10.0, 0.0), (11.0, 1.0), (12.0, 2.0), (11.0, 3.0)]
    found = over_threads(groups, join_center, settings, (1, 2))[:4]
    assert [each[:2] for each in found] == [(10.0, 0.0), (11.0, 3.0), (10.0, 0.0), (13.0, 3.0)]


def test_a_lost_center_is_the_mean_of_each_member():
    """Of the shards on the first of two sync PSs; those on the other one stay."""
    settings = options("easgd", shared_memory=False)
    found = over_threads(Topology(4, 1, 1, 2, group=2), join_center, settings, (), (0,))[:4]
    assert found == [
        (10.0, 0.0, [11.0, 10.0]),
        (11.0, 1.0, [12.0, 11.0]),
        (12.0, 2.0, [11.0, 10.0]),
        (13.0, 3.0, [12.0, 11.0]),
    ]


@pytest.mark.parametrize("shared", [False, True])
def test_a_lost_member_is_that_of_the_other_group(shared):
    """Trainer 1 gets what trainer 3 has; members 0 keep theirs. Where trainer 1 kept the global model for both, it
    restarts from what trainer 3 has, without momentum.
    """
    found = over_groups([0, 1], (1,), shared_memory=shared)
    kept_by_trainer_3 = [13.0, 13.0] if not shared else [3.0, 0.0]
    assert [weights for weights, _ in found] == [0.0, 3.0, 2.0, 3.0]
    assert [each[:2] for _, each in found] == [[10.0, 10.0], kept_by_trainer_3] * 2
