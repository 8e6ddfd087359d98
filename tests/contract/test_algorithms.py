"""What single algorithms and options promise beyond what all do (``test_sync``), exactly where it can be exact."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from late_partner import check_late_partner, late_partner
from rank_pool import over_mpi
from ranks import over_threads
from sync_bodies import PARAMETERS, on_trainers, options, replica, with_pace

from ssmpi import sync
from ssmpi.model.options import DenseOptions
from ssmpi.runtime.files.log import log
from ssmpi.runtime.topology import Topology

TWO = Topology(trainers=2, threads=2, embedding_ps=1, sync_ps=2)
FIVE = Topology(trainers=5, threads=1, embedding_ps=1, sync_ps=0)
ALL = tuple(sync.ALGORITHMS)


# SlowMo


def slow_blocks(world, options, factors):
    """``factors[block]`` is this trainer's learning-rate factor at the end of a block."""
    weights, now = replica(0), [1.0]

    def work(synchronizers):
        for block, factor in enumerate(factors):
            now[0] = factor * (1.0 + 0.5 * world.rank)
            weights[:] += 0.1 * replica(10 * block + world.rank)
            synchronizers[0].round()
        after = weights.copy()
        synchronizers[0].close()
        return after, synchronizers[0].model()

    return on_trainers(world, options, weights, work, sync.LocalTrainer(factor=lambda: now[0]))


@pytest.mark.parametrize("alpha", [0.5, 1.0])
def test_slowmo_without_momentum_is_model_averaging(alpha):
    factors = (1.0, 0.5, 0.25, 0.3, 0.01)
    slow = options("slowmo", alpha=alpha, slowmo=sync.slowmo.SlowMoOptions(momentum=0.0, rate=1.0))
    for ours, theirs in zip(
        over_threads(TWO, slow_blocks, slow, factors)[:2],
        over_threads(TWO, slow_blocks, options("ma", alpha=alpha), factors)[:2],
        strict=True,
    ):
        for a, b in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(a, b, rtol=0, atol=1e-6)


@pytest.mark.parametrize("rate", [0.7, 1.0])
def test_slowmo_takes_the_steps_of_its_paper(rate):
    """Algorithm 1 in float64, with the mean of the trainers' rates; ``close`` makes one block more."""
    factors, beta = (1.0, 0.5, 0.25, 0.3), 0.6
    chosen = options("slowmo", alpha=1.0, slowmo=sync.slowmo.SlowMoOptions(momentum=beta, rate=rate))
    x, u = replica(0).astype(float), np.zeros(PARAMETERS)
    for block in range(len(factors) + 1):
        learned = [0.1 * replica(10 * block + rank) if block < len(factors) else 0.0 for rank in range(2)]
        gamma = 1.25 * factors[min(block, len(factors) - 1)]
        u = beta * u + (x - (x + (learned[0] + learned[1]) / 2)) / gamma
        x = x - rate * gamma * u
    for _, model in over_threads(TWO, slow_blocks, chosen, factors)[:2]:
        np.testing.assert_allclose(model, x, rtol=0, atol=2e-5)


# What is learned once


LEARNED = 2.0  # by the first of the trainers, and nothing by the others


def learned_once(world, options, rests, earlier=None):
    """Trainer 0 learns something; then only rounds, with a rest after every so many. Model, replica and state at the
    end.

    ``earlier`` are these of a job that this one goes on from; then nobody learns.
    """
    weights = np.zeros(PARAMETERS, np.float32) if earlier is None else earlier[0][0].copy()

    def work(synchronizers):
        own = synchronizers[0]
        if earlier is not None:
            own.resume(earlier[0][2])
            if len(earlier) == world.trainers.size:
                weights[:] = earlier[world.rank][1]
        elif world.rank == 0:
            weights[:] += LEARNED
        for rounds in rests:
            for _ in range(rounds):
                own.round()
            own.close()
        return own.model(), weights.copy(), {name: values.copy() for name, values in own.state().items()}

    return on_trainers(world, options, weights, work)


def trainers(number):
    """That many, of one thread each."""
    return Topology(trainers=number, threads=1, embedding_ps=1, sync_ps=0)


def gain(alpha, momentum, rate=1.0):
    """How often what is learned once counts in the end: the sum of a round's equations over all rounds."""
    return 1 / (1 - alpha + alpha * (1 - momentum) / rate)


MOMENTA = [
    *(("bmuf", {"momentum": m, "nesterov": n}) for m in (0.5, 0.9) for n in (False, True)),
    ("bmuf", {"momentum": 0.6, "nesterov": True, "eta": 0.7}),
    ("slowmo", {"momentum": 0.5}),
    ("slowmo", {"momentum": 0.8, "rate": 0.7}),
]


def with_momentum(algorithm, settings, alpha):
    """Settings, and how often what is learned once is to count."""
    block = sync.ALGORITHMS[algorithm].Options(**settings)
    expected = gain(alpha, block.momentum, getattr(block, "eta", None) or block.rate)
    return options(algorithm, alpha=alpha, **{algorithm: block}), expected


@pytest.mark.parametrize("rests", [(120,), (1, 2, 3, 1, 120)], ids=["one_part", "parts"])
@pytest.mark.parametrize("alpha", [1.0, 0.5])
@pytest.mark.parametrize(("algorithm", "settings"), MOMENTA)
def test_what_is_learned_once_counts_as_often_as_momentum_says(algorithm, settings, alpha, rests):
    """With alpha 1, as in the papers, 1 / (1 - momentum) times: classical and Nesterov, with rests in between or
    without.
    """
    chosen, expected = with_momentum(algorithm, settings, alpha)
    for model, weights, _ in over_threads(trainers(2), learned_once, chosen, rests)[:2]:
        np.testing.assert_allclose(model, LEARNED / 2 * expected, rtol=1e-3)
        np.testing.assert_allclose(weights, LEARNED / 2 * expected, rtol=1e-3)


@pytest.mark.parametrize("after", [2, 3])
@pytest.mark.parametrize("nesterov", [False, True])
def test_momentum_outlasts_a_checkpoint(nesterov, after):
    """Also where other numbers of trainers go on, which begin where the last round told all to be."""
    chosen, expected = with_momentum("bmuf", {"momentum": 0.8, "nesterov": nesterov}, alpha=1.0)
    before = over_threads(trainers(2), learned_once, chosen, (2, 1))[:2]
    for model, _, _ in over_threads(trainers(after), learned_once, chosen, (60,), before)[:after]:
        np.testing.assert_allclose(model, LEARNED / 2 * expected, rtol=1e-3)


def test_a_checkpoint_without_what_was_broadcast_is_gone_on_from(monkeypatch):
    """Version 0.1.0 did not save it: it follows from what is there, and the log says so."""
    said = []
    monkeypatch.setattr(log, "warning", lambda text, *_: said.append(text))
    chosen, expected = with_momentum("bmuf", {"momentum": 0.8, "nesterov": True}, alpha=1.0)
    before = over_threads(trainers(2), learned_once, chosen, (2, 1))[:2]
    for _, _, state in before:
        del state["reference"]
    for model, _, _ in over_threads(trainers(2), learned_once, chosen, (60,), before)[:2]:
        np.testing.assert_allclose(model, LEARNED / 2 * expected, rtol=1e-3)
    assert len(said) == 2
    assert "has no array 'reference'" in said[0]


# Gossip


def gossip_rounds(world, options):
    """Those who ask learn and ask, the others answer."""
    weights = replica(world.rank)

    def work(synchronizers):
        if world.rank % 2 == 0:
            for block in range(12):
                weights[:] += 0.01 * replica(100 + 10 * block + world.rank)
                synchronizers[0].round()
        synchronizers[0].close()
        return weights.copy(), synchronizers[0].model(), synchronizers[0].exchange.rounds

    return on_trainers(world, options, weights, work)


def check_gossip(results, options):
    """What is learned anywhere is in the sum of the replicas, no more and no less, and pairs come closer."""
    learned = sum(
        0.01 * replica(100 + 10 * block + rank).astype(float)
        for block in range(12)
        for rank in range(0, len(results), 2)
    )
    before = np.array([replica(rank) for rank in range(len(results))], float)
    after = np.array([weights for weights, *_ in results], float)
    np.testing.assert_allclose(after.sum(axis=0), before.sum(axis=0) + learned, rtol=0, atol=2e-5)
    for _, model, _ in results:
        np.testing.assert_allclose(model, after.mean(axis=0), rtol=0, atol=1e-6)
    assert (
        sum(rounds for *_, rounds in results[::2])
        == sum(rounds for *_, rounds in results[1::2])
        == 12 * len(results[::2])
    )
    assert after.std(axis=0).mean() < 0.5 * before.std(axis=0).mean()


def trained_meanwhile(world, options):
    """The worker threads do three iterations between a snapshot and its merge."""
    home = sync.LocalTrainer(np.zeros(2, np.int64))

    def work(synchronizers):
        own, merge = synchronizers[0], synchronizers[0].exchange.merge

        def late(*arguments):
            home.iterations[1] += 3
            merge(*arguments)

        own.exchange.merge = late
        if world.rank == 0:
            own.round()
        own.close()
        return sync.figures(synchronizers)["staleness"]

    return on_trainers(world, options, replica(world.rank), work, home)


def asked(world, options):
    """The rounds of a trainer; those that ask do twenty each."""

    def work(synchronizers):
        for _ in range(0 if world.rank % 2 else 20):
            synchronizers[0].round()
        synchronizers[0].close()
        return synchronizers[0].exchange.rounds

    return on_trainers(world, options, replica(world.rank), work)


def test_gossip_asks_all_partners():
    _, first, _, second, _ = over_threads(FIVE, asked, options("gossip"))[:5]
    assert first + second == 60
    assert min(first, second) >= 15  # of 30, by seeds that do not change


def test_staleness_of_a_pair_is_counted_on_both_sides():
    assert over_threads(TWO, trained_meanwhile, options("gossip"))[:2] == [3.0, 3.0]


def one_question(world, options):
    weights = replica(world.rank)

    def work(synchronizers):
        if world.rank == 0:
            synchronizers[0].round()
        synchronizers[0].close()
        return weights.copy()

    return on_trainers(world, options, weights, work)


def check_pair(results, options):
    """With alpha 1 a pair is its mean afterwards."""
    for weights in results:
        np.testing.assert_allclose(weights, (replica(0) + replica(1)) / 2, rtol=0, atol=1e-6)


# Asynchronous parameter servers


def pushes(world, options):
    """Two parts with unequal steps; every gradient is a small whole number, so that sums are exact."""
    weights = np.zeros(PARAMETERS, np.float32)
    count = np.zeros((2, world.topology.threads), int)

    def gradients(thread):
        count[0, thread] += 1
        return small_gradient(world.rank, thread, count[0, thread])

    def work(synchronizers):
        models = []
        for steps in ([7, 0], [1, 23]) if world.rank == 0 else ([12, 3], [0, 0]):
            with_pace(world, options, synchronizers, gradients, steps)
            models.append(synchronizers[0].model())
        return models

    return on_trainers(world, options, weights, work)


def small_gradient(rank, thread, step):
    return np.random.default_rng([rank, thread, step]).integers(-3, 4, PARAMETERS).astype(np.float32)


def check_pushes(results, options):
    """The center is at the end of each part where all gradients of all threads lead: none is lost, none counts
    twice.
    """
    done = [{(0, 0): 7, (0, 1): 0, (1, 0): 12, (1, 1): 3}, {(0, 0): 8, (0, 1): 23, (1, 0): 12, (1, 1): 3}]
    for models in results:
        for model, counts in zip(models, done, strict=True):
            total = sum(small_gradient(*who, step) for who, n in counts.items() for step in range(1, n + 1))
            np.testing.assert_array_equal(model, -total)


# Schedules

FACTORS, EXAMPLES, STEPS = (0.5, 0.25), (1, 3), 6  # by trainer; steps of each thread


def scheduled(world, options):
    """Trainers at different places of the schedule, with batches of different sizes."""
    weights, count = np.zeros(PARAMETERS, np.float32), [0, 0]
    home = sync.LocalTrainer(np.zeros(2, np.int64), lambda: FACTORS[world.rank])

    def gradients(thread):
        count[thread] += 1
        return small_gradient(world.rank, thread, count[thread])

    def work(synchronizers):
        steps = [STEPS] * (1 if options.algorithm == "synchronous" else 2)
        with_pace(world, options, synchronizers, gradients, steps, EXAMPLES[world.rank])
        return synchronizers[0].model()

    return on_trainers(world, options, weights, work, home)


def sum_of(rank, threads):
    return sum(small_gradient(rank, thread, step) for thread in range(threads) for step in range(1, STEPS + 1))


def expected_of(options):
    """Where the schedule's factors lead; of those of several trainers the mean is taken, by examples where
    steps are.
    """
    if options.algorithm == "async_ps":
        return -sum(FACTORS[rank] * sum_of(rank, 2) for rank in range(2))
    factor, gradient = ((EXAMPLES[0] * a + EXAMPLES[1] * b) / 4 for a, b in (FACTORS, [sum_of(r, 1) for r in range(2)]))
    return -factor * gradient


@pytest.mark.parametrize(
    "chosen",
    [
        options("async_ps"),
        options("async_ps", "fixed_rate", 1),
        options("synchronous", "fixed_rate"),
    ],
    ids=lambda chosen: f"{chosen.algorithm}-{chosen.pace}",
)
def test_the_schedule_reaches_whoever_takes_the_steps(chosen):
    for model in over_threads(TWO, scheduled, chosen)[:2]:
        np.testing.assert_allclose(model, expected_of(chosen), rtol=0, atol=1e-5)


# Cases


@dataclass(frozen=True)
class Case:
    """As in ``test_sync``; ``over_mpi`` also with real ranks."""

    body: Callable[..., Any]
    check: Callable[..., None]
    options: Any
    topology: Topology = TWO
    over_mpi: bool = False

    def __str__(self):
        chosen = self.options
        return (
            f"{self.body.__name__}-{chosen.algorithm}-{chosen.pace}-every{chosen.every_iterations}-"
            f"{chosen.codec}-{self.topology.trainers}"
        )


ASYNC = [
    options("async_ps"),
    *(options("async_ps", "fixed_rate", every) for every in (1, 4)),
    options("async_ps", codec="threshold:0"),
]
CASES = [
    *(Case(late_partner, check_late_partner, options("ma", pace, every=10), over_mpi=True) for pace in sync.pace.PACES),
    Case(gossip_rounds, check_gossip, options("gossip"), FIVE),
    Case(gossip_rounds, check_gossip, options("gossip"), over_mpi=True),
    Case(one_question, check_pair, options("gossip", alpha=1.0), over_mpi=True),
    *(Case(pushes, check_pushes, o, over_mpi=o in (ASYNC[1], ASYNC[-1])) for o in ASYNC),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=str)
def test_promise_over_threads(case):
    results = over_threads(case.topology, case.body, case.options)
    case.check(results[: case.topology.trainers], case.options)


@pytest.mark.parametrize("case", [case for case in CASES if case.over_mpi], ids=str)
def test_promise_over_mpi(case):
    case.check(over_mpi(TWO, case.body, case.options)[:2], case.options)


def test_async_ps_shards_are_the_same_arithmetic():
    """To the last bit, for any number of sync PSs."""
    one, three = (over_threads(replace(TWO, sync_ps=n), pushes, options("async_ps", "fixed_rate", 1)) for n in (1, 3))
    np.testing.assert_array_equal(one[0], three[0])


def remembers(world, options):
    """What the sync PSs' Adagrad remembers after some pushes, and after it was told something else and got one more."""
    weights, count = np.zeros(PARAMETERS, np.float32), itertools.count(1)

    def work(synchronizers):
        def push(steps):
            with_pace(world, options, synchronizers, lambda _: small_gradient(0, 0, next(count)), [steps])
            return synchronizers[0].state()

        found = push(5)
        synchronizers[0].resume({"center": replica(1) ** 2})
        return found, push(1)

    return on_trainers(world, options, weights, work, dense=DenseOptions(optimizer="adagrad", initial_state=0.5))


def test_async_ps_saves_and_restores_its_optimizer():
    alone = Topology(trainers=1, threads=1, embedding_ps=1, sync_ps=3)
    before, after = over_threads(alone, remembers, options("async_ps", "fixed_rate", 1))[0]
    squares = sum(small_gradient(0, 0, step) ** 2 for step in range(1, 6))
    np.testing.assert_array_equal(before["center"], 0.5 + squares)
    assert list(after) == ["center"]
    expected = replica(1) ** 2 + small_gradient(0, 0, 6) ** 2
    np.testing.assert_array_equal(after["center"], expected)
