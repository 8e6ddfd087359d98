"""Trainers as a grid: rounds join the same member of every replica, in whatever groups trainers hold one."""

from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from owners import BY_LAYER, IN_TURN, NETWORK, WHOLE
from rank_pool import over_mpi
from ranks import over_threads
from sync_bodies import WAITING, close_together, mapped, meet, on_trainers, options

from ssmpi import sync
from ssmpi.runtime.errors import TopologyError
from ssmpi.runtime.mpi.waiting import wait_all
from ssmpi.runtime.topology import Topology


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


GROUPS = Topology(4, 1, 1, 2, group=2)
ONE_ROUND = options("ma", alpha=1.0, shared_memory=False)


def test_members_meet_the_same_member_of_the_other_replica():
    evens, odds = ("trainer 0", "trainer 2"), ("trainer 1", "trainer 3")
    sent = 4.0 * 1_004  # an all-reduce of two: the vector with its weight
    for found in (over_threads(Topology(4, group=2), one_round, ONE_ROUND), over_mpi(GROUPS, one_round, ONE_ROUND)):
        assert found[:4] == [(evens, 50.5, 50.5, sent), (odds, 505.0, 505.0, sent)] * 2


def tell_next(world):
    """A body: each member sends the next one of its group a word; who sent it, and bytes by class of link."""
    if world.role != "trainer":
        return None
    own, word = world.group, np.array([world.index], np.int64)
    found = np.empty(1, np.int64)
    world.traffic.on = True
    next_one, last = (own.rank + 1) % own.size, (own.rank - 1) % own.size
    wait_all([own.irecv(found, last, 1), own.isend(word, next_one, 1)], WAITING, "the group")
    world.traffic.on = False
    return int(found[0]), {name: size for name, size in world.traffic.by_name().items() if size}


def test_members_of_a_group_talk_apart_and_are_counted_apart():
    for found, senders in (
        (over_threads(Topology(6, group=3), tell_next)[:6], [2, 0, 1, 5, 3, 4]),
        (over_mpi(GROUPS, tell_next)[:4], [1, 0, 3, 2]),
    ):
        assert [sender for sender, _ in found] == senders
        assert [sent for _, sent in found] == [{"bytes_group": 8.0, "messages_group": 1.0}] * len(senders)


def step_meanwhile(world, options):
    """A body: how stale a round is in which this trainer took two steps of its own lane and three for another's."""
    weights = np.zeros(1_003, np.float32)

    def work(synchronizers):
        own = synchronizers[0]
        exchange, local = own.exchange.reference, own.context.local

        def late(snapshot, active):
            local.iterations += 2
            local.helped += 3
            return exchange(snapshot, active)

        own.exchange.reference = late
        own.round()
        return sync.figures(synchronizers)["staleness"]

    return on_trainers(world, options, weights, work)


def test_staleness_counts_all_lanes_of_a_replica():
    chosen = options("ma", shared_memory=False)
    assert over_threads(Topology(4, group=2), step_meanwhile, chosen)[:4] == [5.0] * 4


# Each member's rounds are those of the whole vector


def random(seed):
    """A vector of the whole network."""
    return np.random.default_rng(seed).normal(size=NETWORK.parameters).astype(np.float32)


def in_turn(world, options, work):
    """``work`` on all trainers at once; where it meets a center, on one replica after the other."""
    turns = world.topology.replicas if sync.ALGORITHMS[options.algorithm].partner == sync.SYNC_PS else 1
    for turn in range(turns):
        if turns == 1 or turn == world.topology.place_of(world.index).replica:
            work()
        meet(world)


def blocks(world, options, owners):
    """A body: blocks of steps by the gradients that a replica's lanes have in each, with a round after them."""
    replica, member = world.topology.place_of(world.index)
    owned, lanes, kind = owners[member], world.topology.replica_lanes, sync.algorithm_of(options)
    weights = mapped(world, options, owned.of(random(replica))) if world.role == "trainer" else None

    def work(synchronizers):
        own = synchronizers[0]
        steps = [synchronizers[lane % len(synchronizers)].optimizer(lane) for lane in range(lanes)]
        pace = sync.pace_of(synchronizers, options, lanes, None, 1.0) if options.pace == "fixed_rate" else None
        own.exchange.begin()
        if pace:
            pace.begin()

        def block(number):
            for lane, step in enumerate(steps):
                gradients = owned.of(random(1_000 * number + 10 * lane + replica))
                step.step(SimpleNamespace(gradients=gradients, arrays=(weights, gradients)), 0.01)
                if pace:
                    pace.after_step(lane)
            if kind.partner not in ("", sync.SYNC_PS):
                meet(world)  # replicas that meet each other have stepped
            rounds = own.exchange.rounds + 1
            while not pace and own.exchange.leads and own.exchange.rounds < rounds and kind.partner:
                own.round()  # perhaps to no effect: a partner must be answered, whenever it asks

        for number in range(4):
            in_turn(world, options, partial(block, number))
        after = weights.copy()
        central = kind.partner == sync.SYNC_PS
        in_turn(world, options, pace.end if pace else own.close if central else partial(close_together, world, own))
        return own.context.replicas.names, after, weights.copy(), own.model()

    return on_trainers(world, options, weights, work)


SHADOW = [options(name) for name, kind in sync.ALGORITHMS.items() if not kind.in_the_step]
BY_LANE = [options(name, "fixed_rate") for name, kind in sync.ALGORITHMS.items() if kind.partner == sync.SYNC_PS]
CODED = [options(name, codec="bf16") for name, kind in sync.ALGORITHMS.items() if not kind.no_codec]
BY_MESSAGES = [options(name, shared_memory=False) for name in ("easgd", "bmuf")]


@pytest.mark.parametrize("owners", [BY_LAYER, IN_TURN], ids=["layers", "turns"])
@pytest.mark.parametrize(
    "chosen",
    [*SHADOW, *BY_LANE, *CODED, *BY_MESSAGES],
    ids=lambda chosen: f"{chosen.algorithm}-{chosen.pace}-{chosen.codec}-{chosen.shared_memory}",
)
def test_rounds_of_members_are_those_of_the_whole_vector(chosen, owners):
    """To the bit: what two trainers of two threads each would have, cut into what each member owns."""
    servers = 2 if sync.ALGORITHMS[chosen.algorithm].partner == sync.SYNC_PS else 0
    flat = over_threads(Topology(2, 2, 1, servers), blocks, chosen, (WHOLE,))
    grouped = over_threads(Topology(4, 1, 1, servers, group=2), blocks, chosen, owners)
    for trainer, (met, *found) in enumerate(grouped[:4]):
        replica, member = divmod(trainer, 2)
        assert met == (f"trainer {member}", f"trainer {member + 2}")
        for values, whole in zip(found, flat[replica][1:], strict=True):
            np.testing.assert_array_equal(values, owners[member].of(whole))


OVER_MPI = [options("easgd"), options("easgd", "fixed_rate"), options("async_ps"), options("ma")]


@pytest.mark.parametrize("chosen", OVER_MPI, ids=lambda chosen: f"{chosen.algorithm}-{chosen.pace}")
def test_members_have_centers_and_teams_of_their_own_in_shared_memory(chosen):
    """Over real ranks, which map them: as the whole vector over threads, to the bit."""
    flat = over_threads(Topology(2, 2, 1, 2), blocks, chosen, (WHOLE,))
    for trainer, (_, *found) in enumerate(over_mpi(GROUPS, blocks, chosen, IN_TURN)[:4]):
        replica, member = divmod(trainer, 2)
        for values, whole in zip(found, flat[replica][1:], strict=True):
            np.testing.assert_array_equal(values, IN_TURN[member].of(whole))


def test_rounds_move_replicas():
    """Otherwise the test above would compare nothing."""
    _, before, after, model = over_threads(Topology(2, 2, 1, 0), blocks, options("ma"), (WHOLE,))[0]
    assert np.any(before != model)
    assert np.any(after != random(0))


@pytest.mark.parametrize(
    ("chosen", "remedy"),
    [
        (options("synchronous", "fixed_rate"), "sync.algorithm = 'synchronous'.*set another algorithm"),
        (options("ma", "fixed_rate"), "sync.pace = 'fixed_rate' stops all threads.*set sync.pace = 'shadow'"),
    ],
    ids=["synchronous", "fixed rate"],
)
def test_barriers_are_refused(chosen, remedy):
    with pytest.raises(TopologyError, match=f"topology.group = 2: {remedy}, or topology.group = 1"):
        sync.check_topology(chosen, Topology(4, group=2))
    sync.check_topology(chosen, Topology(4))


@pytest.mark.parametrize("chosen", [*SHADOW, *BY_LANE], ids=lambda chosen: f"{chosen.algorithm}-{chosen.pace}")
def test_all_other_algorithms_are_for_groups_too(chosen):
    servers = sync.ALGORITHMS[chosen.algorithm].partner == sync.SYNC_PS
    sync.check_topology(chosen, Topology(4, sync_ps=int(servers), group=2))
