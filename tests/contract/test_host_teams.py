"""Trainers of one host that are averaged in place, and sync PSs that move replicas: the same as by messages, whoever
begins late, ends early or cannot be mapped.

Pretended ranks share one process; which host each is on is pretended too.
"""

import itertools
import threading
import time
from dataclasses import replace

import numpy as np
import pytest
import sync_bodies
from rank_pool import over_mpi
from ranks import PATIENCE, over_threads
from sync_bodies import PARAMETERS, WAITING, close_together, live, meet, on_trainers, options, replica, with_pace
from unequal_steps import lesson

from ssmpi import sync
from ssmpi.runtime.mpi import shared_memory
from ssmpi.runtime.mpi.waiting import wait_until
from ssmpi.runtime.topology import Role, Topology
from ssmpi.sync import host_team

MOMENTUM = sync.bmuf.BMUFOptions(eta=0.7, momentum=0.5, nesterov=True)
CLASSICAL = replace(MOMENTUM, nesterov=False)
AVERAGES = [
    options("ma"),
    options("ma", alpha=1.0),
    options("bmuf"),
    options("bmuf", bmuf=CLASSICAL),
    options("bmuf", bmuf=MOMENTUM),
]
ONE_HOST, TWO_HOSTS, MIXED = ("h0",) * 3, ("h0", "h0", "h1"), ("h0", "h1", "h0", "h1")


def name_of(options):
    own = options.bmuf
    momentum = f"-momentum{own.momentum}{'-nesterov' * own.nesterov}" if options.algorithm == "bmuf" else ""
    return f"{options.algorithm}-alpha{options.alpha}{momentum}"


@pytest.fixture
def on_hosts(monkeypatch):
    """``on_hosts(hosts, body, options)``: results of trainers on these hosts."""

    def run(hosts, body, options, sync_ps=0):
        monkeypatch.setattr(sync_bodies, "HOSTS", dict(enumerate(hosts)))
        topology = Topology(trainers=len(hosts), threads=2, embedding_ps=1, sync_ps=sync_ps)
        return over_threads(topology, body, options)[: len(hosts)]

    return run


def messages(options):
    """The same without shared memory."""
    return replace(options, shared_memory=False)


def same(ours, theirs):
    """To the bit, on every trainer."""
    for mine, other in zip(ours, theirs, strict=True):
        for a, b in zip(mine, other, strict=True):
            np.testing.assert_array_equal(a, b)


# Rounds in a known order


def blocks_at_rest(world, options):
    """Two parts of some rounds each, all of them while nobody trains."""
    weights = live(world, options, 0)

    def work(synchronizers):
        own, seen = synchronizers[0], []
        for part in range(2):
            own.exchange.begin()
            for block in range(4):
                weights[:] += 0.1 * replica(100 * part + 10 * block + world.rank)
                meet(world)
                own.round()
                meet(world)
            seen.append(weights.copy())
            close_together(world, own)
            seen += [weights.copy(), own.model(), *own.state().values()]
            seen = [values.copy() for values in seen]
        return seen

    return on_trainers(world, options, weights, work)


@pytest.mark.parametrize("options", AVERAGES, ids=name_of)
@pytest.mark.parametrize("hosts", [ONE_HOST, TWO_HOSTS], ids="-".join)
def test_rounds_are_those_by_message_to_the_bit(on_hosts, hosts, options):
    """Two hosts too, where the sum over leaders runs in the order of the trainers."""
    same(on_hosts(hosts, blocks_at_rest, options), on_hosts(hosts, blocks_at_rest, messages(options)))


@pytest.mark.parametrize("options", AVERAGES, ids=name_of)
def test_rounds_of_several_leaders_are_those_by_message(on_hosts, options):
    """Up to the order of a sum; the global model and what is remembered of it are the same on all trainers, to
    the bit.
    """
    ours, theirs = (on_hosts(MIXED, blocks_at_rest, way) for way in (options, messages(options)))
    for mine, other in zip(ours, theirs, strict=True):
        for a, b in zip(mine, other, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=2e-6)
    for result in ours:
        np.testing.assert_array_equal(result[-1], ours[0][-1])


def turns_with_a_center(world, options):
    weights, local = live(world, options, world.rank), sync.LocalTrainer(np.zeros(2, np.int64))

    def work(synchronizers):
        own = synchronizers[0]
        assert bool(getattr(own.exchange, "mapped", [])) == options.shared_memory
        for turn in range(12):
            if turn % 2 == world.rank:
                weights[:] += replica(100 + turn)
                local.iterations[0] += 1 + turn
                own.round()
            meet(world)
        return weights.copy(), own.model()

    return on_trainers(world, options, weights, work, local)


@pytest.mark.parametrize("sync_ps", [1, 3])
def test_a_center_that_moves_replicas_does_what_messages_do_to_the_bit(on_hosts, sync_ps):
    own = options("easgd", alpha=0.3)
    ways = (on_hosts(("h0", "h0"), turns_with_a_center, way, sync_ps) for way in (own, messages(own)))
    same(*ways)


def hot_moves(world, options, far):
    """Rounds of all trainers at once, as fast as they can; those that are ``far`` by messages."""
    weights = many(world.rank)

    def work(synchronizers):
        own = synchronizers[0]
        assert bool(getattr(own.exchange, "mapped", [])) == (world.rank not in far)
        meet(world)
        for _ in range(200):
            own.round()
        meet(world)
        return weights.copy(), own.model()

    own = messages(options) if world.rank in far else options
    return on_trainers(world, options if world.role is Role.SYNC_PS else own, weights, work)


def many(seed):
    """Weights that take a while to move."""
    return np.random.default_rng(seed).normal(size=30_011).astype(np.float32)


PAIR = Topology(trainers=2, threads=1, embedding_ps=1, sync_ps=1)


def test_moves_of_several_processes_at_once_conserve_sums():
    """Trainers that map the center, and its sync PSs for those that do not, hold its lock while they move it."""
    own = options("easgd")
    before = sum(many(rank).astype(float) for rank in (0, 1, 0))
    for far in ((), (0,)):
        results = over_mpi(PAIR, hot_moves, own, far)
        after = sum(weights.astype(float) for weights, _ in results[:2]) + results[0][1]
        np.testing.assert_allclose(after, before, rtol=0, atol=1e-4)
        for _, model in results[:2]:
            np.testing.assert_array_equal(model, results[0][1])


# Who is in which team


def formed(world, options):
    weights = live(world, options, 0)

    def work(synchronizers):
        team = getattr(synchronizers[0].exchange, "team", None)
        world.trainers.gather(None)  # a leader's memory is mapped until all members have opened it
        return team and (team._members[0], team.size, team.leaders.names if team.leads else ())

    return on_trainers(world, options, weights, work)


def test_the_first_trainer_of_each_host_leads(on_hosts):
    names = ("trainer 0", "trainer 1")
    assert on_hosts(MIXED, formed, options("ma")) == [(0, 2, names), (1, 2, names), (0, 2, ()), (1, 2, ())]
    one_alone = on_hosts(TWO_HOSTS, formed, options("bmuf"))
    assert one_alone == [(0, 2, ("trainer 0", "trainer 2")), (0, 2, ()), (2, 1, ("trainer 0", "trainer 2"))]


@pytest.mark.parametrize(
    ("hosts", "options"),
    [
        (("h0",), options("bmuf")),
        (("h0", "h1"), options("ma")),
        (("h0", "h0"), options("ma", shared_memory=False)),
        (("h0", "h0"), options("ma", "fixed_rate")),
        (("h0", "h0"), options("slowmo")),
        (("h0", "h0"), options("gossip")),
    ],
    ids=str,
)
def test_without_neighbours_or_rounds_to_share_there_is_no_group(on_hosts, hosts, options):
    assert on_hosts(hosts, formed, options) == [None] * len(hosts)


@pytest.mark.parametrize("refused", [2, 3], ids=["a replica", "the board"])
def test_a_host_whose_trainers_cannot_map_each_other_sends_messages(on_hosts, monkeypatch, refused):
    """On that host alone. Its second trainer's replica cannot be mapped by the leader, or the leader's board by it."""
    attach, by_rank = shared_memory.attach, {}

    def forbidden(address, size):
        me = by_rank.get(threading.get_ident())
        if me == refused:
            raise OSError("not permitted")
        return attach(address, size)

    def body(world, options):
        by_rank[threading.get_ident()] = world.rank
        return formed(world, options), blocks_at_rest(world, options)

    monkeypatch.setattr(host_team, "attach", forbidden)
    hosts, own = ("h0", "h0", "h1", "h1"), options("bmuf", bmuf=MOMENTUM)
    found = on_hosts(hosts, body, own)
    leaders = ("trainer 0", "trainer 2", "trainer 3")
    assert [team for team, _ in found] == [(0, 2, leaders), (0, 2, ()), (2, 1, leaders), (3, 1, leaders)]
    theirs = on_hosts(hosts, blocks_at_rest, messages(own))
    for (_, mine), other in zip(found, theirs, strict=True):
        for a, b in zip(mine, other, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=2e-6)


# Who begins late, ends early, or stands still


def a_late_beginning(world, options):
    """Trainer 1 restores its replica after trainer 0, its leader, has asked for a round."""
    weights = live(world, options, world.rank)

    def work(synchronizers):
        own = synchronizers[0]
        if world.rank == 0:
            own.exchange.begin()
            asked = threading.Thread(target=own.round)
            asked.start()
            meet(world)
            asked.join()
            return weights.copy()
        before = weights.copy()
        time.sleep(0.2)
        np.testing.assert_array_equal(weights, before, "nobody moves it at rest")
        weights[:] = replica(7)
        own.exchange.begin()
        meet(world)
        while np.array_equal(weights, replica(7)):
            time.sleep(1e-3)
        return None

    return on_trainers(world, options, weights, work)


def test_a_round_waits_for_members_to_begin(on_hosts):
    """What they restored is in it."""
    mean = (replica(0) + replica(7)) / 2
    leader, _ = on_hosts(("h0", "h0"), a_late_beginning, options("ma", alpha=1.0))
    np.testing.assert_allclose(leader, mean, rtol=0, atol=1e-6)


def one_has_ended(world, options, ended):
    weights = live(world, options, 0)

    def work(synchronizers):
        own = synchronizers[0]
        own.exchange.begin()
        weights[:] = replica(world.rank)
        if world.rank == ended:
            own.exchange.end()
        meet(world)
        for _ in range(2):  # the first also measures, by another path
            if world.rank == ended and not options.shared_memory:
                own.exchange.round(False, own.merge_target)
            else:
                own.round()
        meet(world)
        after = weights.copy()
        close_together(world, own)
        return after, own.model(), *(values.copy() for values in own.state().values())

    return on_trainers(world, options, weights, work)


@pytest.mark.parametrize("ended", [0, 1, 2], ids=["leader", "member", "alone"])
@pytest.mark.parametrize("hosts", [ONE_HOST, TWO_HOSTS], ids="-".join)
@pytest.mark.parametrize("own", [options("ma"), options("bmuf", bmuf=MOMENTUM)], ids=name_of)
def test_ended_trainers_follow_without_weight(on_hosts, own, hosts, ended):
    def body(world, options):
        return one_has_ended(world, options, ended)

    ours, theirs = (on_hosts(hosts, body, way) for way in (own, messages(own)))
    same(ours, theirs)
    others = [rank for rank in range(3) if rank != ended]
    if own.algorithm == "ma":
        mean = sum(replica(rank) for rank in others) / 2
        np.testing.assert_allclose(ours[ended][0], (replica(ended) + 3 * mean) / 4, rtol=0, atol=1e-6)
    for result in ours:
        np.testing.assert_array_equal(result[1], ours[0][1])


UNEVEN = (
    ([0, 0], [20, 30], [5, 0], [0, 40]),
    ([30, 3], [0, 0], [0, 0], [1, 0]),
    ([0, 0], [0, 0], [0, 0], [0, 0]),
    ([0, 0], [0, 0], [9, 9], [0, 0]),
)  # steps by part, trainer and thread


def uneven_parts(world, options):
    weights, turn = live(world, options, 0), sync_bodies.turns(world)

    def gradients(thread):
        time.sleep(5e-4)
        return np.full(PARAMETERS, -lesson(world.rank, thread), np.float32)

    def work(synchronizers):
        own, models = synchronizers[0], []
        own.context.local.optimizer.step = sync_bodies.in_turns(turn, own.context.local.optimizer.step)
        own.exchange.merge = sync_bodies.in_turns(turn, own.exchange.merge)
        for part in UNEVEN:
            with_pace(world, options, synchronizers, gradients, part[world.rank])
            at_rest = weights.copy()
            models.append(own.model())
            meet(world)
            np.testing.assert_array_equal(weights, at_rest, "nobody moves replicas at rest")
            meet(world)
        return [*models, sync.figures(synchronizers), int(own.context.local.iterations.sum())]

    return on_trainers(world, options, weights, work)


@pytest.mark.parametrize("own", [o for o in AVERAGES if o.alpha < 1], ids=name_of)
@pytest.mark.parametrize("hosts", [("h0",) * 4, MIXED, ("h0", "h1", "h1", "h1")], ids="-".join)
def test_all_end_with_one_model_that_has_what_was_learned(on_hosts, hosts, own):
    """Parts in which a leader, all but one, or all have nothing to do."""
    results = on_hosts(hosts, uneven_parts, own)
    for part in range(len(UNEVEN)):
        for result in results:
            np.testing.assert_array_equal(result[part], results[0][part])
    most = sum(n * lesson(t, k) for part in UNEVEN for t, ns in enumerate(part) for k, n in enumerate(ns))
    model = results[0][len(UNEVEN) - 1]
    assert np.all(model > replica(0) + 1e-4)
    assert np.all(model < replica(0) + most * max(1.0, own.bmuf.eta / (1 - own.bmuf.momentum)))


ROUNDS = 40  # in which those that follow come as near as float32 tells


@pytest.mark.parametrize("own", [options("ma"), options("bmuf")], ids=name_of)
@pytest.mark.parametrize("hosts", [("h0",) * 4, MIXED, ("h0", "h1", "h1", "h1")], ids="-".join)
def test_background_rounds_keep_what_one_trainer_learns(on_hosts, hosts, own):
    """In each part another trainer trains, once the others have ended: as if it were alone, to the bit, while rounds
    run; and they follow it. Its part ends some rounds later.
    """
    ended = [set() for _ in hosts]

    def one_learns(world, options):
        weights, steps, turn = live(world, options, 0), itertools.count(100 * world.rank), sync_bodies.turns(world)

        def work(synchronizers):
            own, seen = synchronizers[0], []
            end = own.exchange.end
            own.context.local.optimizer.step = sync_bodies.in_turns(turn, own.context.local.optimizer.step)
            own.exchange.merge = sync_bodies.in_turns(turn, own.exchange.merge)

            def more_rounds(number):
                before = own.exchange.tally[0]
                wait_until(lambda: own.exchange.tally[0] >= before + number, WAITING, "rounds")

            def gradients(thread):
                step = next(steps)
                if step == 100 * world.rank:
                    wait_until(lambda: len(ended[part]) == len(hosts) - 1, WAITING, "the others")
                    more_rounds(4)  # those under way may count the others
                return 0.1 * replica(step)

            def end_after_rounds():
                if part == world.rank and world.rank not in ended[part]:  # once: closing ends a part again
                    seen.append(weights.copy())
                    more_rounds(ROUNDS)
                end()
                ended[part].add(world.rank)

            own.exchange.end = end_after_rounds
            for part in range(len(hosts)):
                with_pace(world, options, synchronizers, gradients, [12 if part == world.rank else 0])
                seen.append(own.model())
                meet(world)
            return seen

        return on_trainers(world, options, weights, work)

    results = on_hosts(hosts, one_learns, own)
    expected = replica(0)
    for part in range(len(hosts)):
        for step in range(12):
            expected -= 0.1 * replica(100 * part + step)
        learned = results[part].pop(part)
        if part == 0 and own.algorithm == "ma":  # filtering a mean rounds it
            np.testing.assert_array_equal(learned, expected)
        for seen in (learned, *(result[part] for result in results)):
            np.testing.assert_allclose(seen, expected, rtol=0, atol=2e-5)


@pytest.mark.parametrize("own", [options("ma"), options("bmuf", bmuf=MOMENTUM)], ids=name_of)
def test_led_trainers_report_the_rounds_of_their_leader(on_hosts, own):
    results = on_hosts((*TWO_HOSTS, "h1"), uneven_parts, own)
    figures = [result[-2] for result in results]
    for leader, led in ((0, 1), (2, 3)):
        for key in ("rounds", "round_seconds", "staleness"):
            assert figures[led][key] == figures[leader][key]
    assert figures[0]["rounds"] > 0
    assert all(np.isfinite(figure["divergence"]) for figure in figures)


def measured(world, options):
    weights = live(world, options, world.rank)

    def work(synchronizers):
        synchronizers[0].exchange.begin()
        before = sync.figures(synchronizers)["divergence"]
        meet(world)
        synchronizers[0].round()
        meet(world)
        return before, sync.figures(synchronizers)["divergence"]

    return on_trainers(world, options, weights, work)


def test_divergence_of_led_trainers_is_their_own(on_hosts):
    ours, theirs = (on_hosts(ONE_HOST, measured, way) for way in (options("ma"), options("ma", shared_memory=False)))
    assert all(np.isnan(before) for before, _ in ours)
    assert [after for _, after in ours] == [after for _, after in theirs]


# Resuming


SAVED = {"global": replica(20), "delta": 0.01 * replica(21), "reference": replica(22)}


def resumed(world, options):
    """All resume at their own speed, the leader long before the others; then one block."""
    weights = live(world, options, 20)

    def work(synchronizers):
        own = synchronizers[0]
        time.sleep(0.05 * world.rank)
        own.resume(SAVED)
        own.exchange.begin()
        if world.rank == 0 and hasattr(own.exchange, "team"):
            blocks = threading.Thread(target=own.round)
            blocks.start()
            meet(world)
            blocks.join()
        else:
            meet(world)
            own.round()
        meet(world)
        return weights.copy(), *(values.copy() for values in own.state().values())

    return on_trainers(world, options, weights, work)


def test_a_group_resumes_what_messages_saved(on_hosts):
    own = options("bmuf", bmuf=MOMENTUM)
    same(on_hosts(ONE_HOST, resumed, own), on_hosts(ONE_HOST, resumed, messages(own)))


# A leader that stands still


@pytest.mark.parametrize("own", [options("ma"), options("bmuf")], ids=name_of)
def test_a_stalled_leader_holds_up_no_worker(on_hosts, own):
    """Its third round goes on once the workers of all trainers are done, which wait for it to begin."""
    begun, ended = threading.Event(), []

    def stalled_leader(world, options):
        weights, steps, rounds = live(world, options, 0), itertools.count(), itertools.count(1)

        def gradients(thread):
            if next(steps) == 10:
                assert begun.wait(PATIENCE)
            return np.zeros(PARAMETERS, np.float32)

        def work(synchronizers):
            own = synchronizers[0]
            exchange, whole, end = own.exchange, own.exchange.round, own.exchange.end

            def stalled(*arguments):
                if world.rank == 0 and next(rounds) == 3:
                    begun.set()
                    wait_until(lambda: len(ended) == len(ONE_HOST), WAITING, "the workers of all trainers")
                return whole(*arguments)

            exchange.round, exchange.end = stalled, lambda: (ended.append(world.rank), end())
            with_pace(world, options, synchronizers, gradients, [100, 100])

        return on_trainers(world, options, weights, work)

    on_hosts(ONE_HOST, stalled_leader, own)
    assert begun.is_set()
