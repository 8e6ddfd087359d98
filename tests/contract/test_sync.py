"""What every synchronization algorithm promises, over threads and over MPI with the same bodies.

A case's ``body`` runs on every rank; sync PSs serve the center, other servers have nothing to do. Its ``check`` gets
the trainers' results.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from rank_pool import over_mpi
from ranks import over_threads
from strength import in_soak
from sync_bodies import (
    PARAMETERS,
    REFUSED,
    blocks,
    close_together,
    live,
    meet,
    on_trainers,
    options,
    replica,
    threads_of,
    with_pace,
)
from unequal_steps import check_counted_steps, check_unequal_steps, counted_steps, unequal_steps

from ssmpi import sync
from ssmpi.runtime.topology import Topology

TWO = Topology(trainers=2, threads=2, embedding_ps=1, sync_ps=2)
ALL = tuple(sync.ALGORITHMS)
AVERAGING = ("easgd", "ma", "bmuf")
SHARED = [n for n, k in sync.ALGORITHMS.items() if k.in_teams or (k.partner == sync.SYNC_PS and not k.steps_elsewhere)]


# Bodies


def equal_replicas(world, options):
    weights = live(world, options, 1)

    def work(synchronizers):
        nothing = np.zeros(PARAMETERS, np.float32)
        with_pace(world, options, synchronizers, lambda _: nothing, threads_of(options, 6, 6))
        return weights, synchronizers[0].model()

    return on_trainers(world, options, weights, work)


def check_equal_replicas(results, options):
    """The average of equal replicas changes nothing, not a bit."""
    for weights, model in results:
        np.testing.assert_array_equal(weights, replica(1))
        np.testing.assert_array_equal(model, replica(1))


def one_round(world, options):
    weights = live(world, options, world.rank)

    def work(synchronizers):
        synchronizers[0].exchange.begin()
        synchronizers[0].round()
        meet(world)
        after = weights.copy()
        close_together(world, synchronizers[0])
        return after, synchronizers[0].model()

    return on_trainers(world, options, weights, work)


def check_mean(results, options):
    """One round of model averaging with alpha 1 makes every replica the mean."""
    mean = (replica(0) + replica(1)) / 2
    for weights, model in results:
        np.testing.assert_allclose(weights, mean, rtol=0, atol=5e-7)
        np.testing.assert_allclose(model, mean, rtol=0, atol=5e-7)


def rounds_in_turn(world, options):
    weights = live(world, options, world.rank)

    def work(synchronizers):
        for turn in range(6):
            if turn % 2 == world.rank:
                weights[:] += replica(100 + turn)
                synchronizers[0].round()
            meet(world)
        return weights.copy(), synchronizers[0].model()

    return on_trainers(world, options, weights, work)


def check_easgd(results, options):
    """EASGD in a known order gives what its equations give, however many sync PSs share the center."""
    alpha, w, c = np.float32(options.alpha), [replica(0), replica(1)], replica(0)
    for turn in range(6):
        trainer = turn % 2
        w[trainer] += replica(100 + turn)
        d = alpha * (w[trainer] - c)
        w[trainer], c = w[trainer] - d, c + d
    for (weights, model), expected in zip(results, w, strict=True):
        np.testing.assert_allclose(weights, expected, rtol=0, atol=2e-6)
        np.testing.assert_allclose(model, c, rtol=0, atol=2e-6)


def rounds_at_will(world, options):
    weights = live(world, options, world.rank)

    def work(synchronizers):
        for _ in range(20):
            synchronizers[0].round()
        synchronizers[0].close()
        return weights.copy(), synchronizers[0].model()

    return on_trainers(world, options, weights, work)


def check_conserved(results, options):
    """EASGD moves weight between replicas and center and neither makes nor loses any: within 21 roundings of it."""
    before = replica(0).astype(float) + replica(1) + replica(0)
    after = results[0][0].astype(float) + results[1][0] + results[0][1]
    np.testing.assert_allclose(after, before, rtol=0, atol=1e-5)


def check_bmuf(results, options):
    """Block momentum in Chen and Huo's terms (2016), in float64: a block's gain is over the model broadcast at its
    start, which with Nesterov is ahead of the aggregated one. ``close`` makes one block more.
    """
    zeta, eta, own = options.bmuf.eta, options.bmuf.momentum, options.bmuf
    replicas = [replica(0).astype(float) for _ in range(2)]
    aggregated, broadcast, delta = replica(0).astype(float), replica(0).astype(float), np.zeros(PARAMETERS)
    for block in range(6):
        if block < 5:
            replicas = [replicas[rank] + 0.1 * replica(10 * block + rank) for rank in range(2)]
        gain = np.mean(replicas, axis=0) - broadcast
        delta = eta * delta + zeta * gain
        aggregated = aggregated + delta
        broadcast = aggregated + eta * delta if own.nesterov else aggregated
        moved = [each + options.alpha * (broadcast - each) for each in replicas]
        replicas = moved if block < 5 else replicas
    for rank, (weights, model) in enumerate(results):
        np.testing.assert_allclose(weights, replicas[rank], rtol=1e-5, atol=2e-5)  # momentum amplifies rounding
        np.testing.assert_allclose(model, aggregated, rtol=1e-5, atol=2e-5)


def check_diloco(results, options):
    """Block momentum ahead of the model, with alpha 1, is DiLoCo's outer step (arXiv 2311.08105): SGD with Nesterov
    momentum, here torch's in float64, along how far the mean of the replicas has come from where all of them started.
    """
    start = torch.from_numpy(replica(0).astype(float)).requires_grad_()
    outer = torch.optim.SGD([start], lr=options.bmuf.eta, momentum=options.bmuf.momentum, nesterov=True)
    for block in range(5):
        learned = np.mean([0.1 * replica(10 * block + rank).astype(float) for rank in range(2)], axis=0)
        start.grad = torch.from_numpy(-learned)
        outer.step()
    for weights, _ in results:
        np.testing.assert_allclose(weights, start.detach().numpy(), rtol=1e-5, atol=2e-5)


def learn_meanwhile(world, options):
    weights = replica(world.rank)

    def work(synchronizers):
        exchange, seen = synchronizers[0].exchange.reference, []

        def slow_exchange(snapshot, active):
            reference = exchange(snapshot, active)
            if not seen:
                seen.append(reference.copy())
                weights[:] += 1.0  # what the worker threads did while the messages were on their way
            return reference

        synchronizers[0].exchange.reference = slow_exchange
        synchronizers[0].round()
        after = weights.copy()
        synchronizers[0].close()
        return after, seen[0]

    return on_trainers(world, options, weights, work)


def check_meanwhile(results, options):
    """Merging by the difference keeps what was learned during the exchange."""
    for rank, (weights, reference) in enumerate(results):
        expected = replica(rank) + options.alpha * (reference - replica(rank)) + 1.0
        np.testing.assert_allclose(weights, expected, rtol=0, atol=2e-6)


def unequal_rounds(world, options):
    weights = live(world, options, world.rank)

    def work(synchronizers):
        synchronizers[0].exchange.begin()
        for turn in range(3 if world.rank == 0 else 9):
            synchronizers[0].round()
            if not turn:
                meet(world)
        synchronizers[0].close()
        first = synchronizers[0].model()
        synchronizers[0].exchange.begin()
        synchronizers[0].round()  # the next part of the run starts with all of them again
        synchronizers[0].close()
        return weights.copy(), first, synchronizers[0].model()

    return on_trainers(world, options, weights, work)


def check_unequal(results, options):
    """A trainer that is done early hangs nobody, and all trainers end with the same model."""
    for part in (1, 2):
        np.testing.assert_array_equal(results[0][part], results[1][part])


def check_follows(results, options):
    """A trainer out of data has no weight in the mean any more and follows it."""
    check_unequal(results, options)
    mean = (replica(0) + replica(1)) / 2
    np.testing.assert_allclose(results[0][0], mean, rtol=0, atol=2e-6)
    np.testing.assert_allclose(results[1][0], mean, rtol=0, atol=2e-6)


def alone_at_the_end(world, options):
    weights = replica(world.rank)

    def work(synchronizers):
        if world.rank == 1:
            for learned in range(4):
                weights[:] = replica(50 + learned)
                synchronizers[0].round()
        synchronizers[0].close()
        return weights.copy(), synchronizers[0].model()

    return on_trainers(world, options, weights, work)


def check_alone(results, options):
    """Trainer 0 never trains: with alpha 1 the one that does is not disturbed, and trainer 0 ends where it ended."""
    for weights, model in results:
        np.testing.assert_allclose(weights, replica(53), rtol=0, atol=1e-6)
        np.testing.assert_allclose(model, replica(53), rtol=0, atol=1e-6)


# Cases


@dataclass(frozen=True)
class Case:
    """A property, the settings it is looked at with, and the ranks it takes. ``real`` ones hold over MPI too."""

    body: Any
    check: Any
    options: Any
    topology: Topology = TWO
    real: bool = True

    def __str__(self):
        default, own = sync.Options(), vars(self.options)[self.options.algorithm]
        shown = [f"{k}={v}" for k, v in vars(self.options).items() if k not in ALL and v != vars(default)[k]]
        shown += [f"{k}={v}" for k, v in vars(own).items() if v != vars(type(own)())[k]]
        return "-".join([self.body.__name__, *shown, f"{self.topology.trainers}x{self.topology.sync_ps}ps"])


def bmuf(**settings):
    return sync.bmuf.BMUFOptions(**settings)


def by_message(*arguments, **settings):
    """Settings with which no memory is shared."""
    return options(*arguments, shared_memory=False, **settings)


def moved_by_others(options):
    """Whether other processes move a replica while its own steps; pretended ranks take turns, real ones may lose a
    step.
    """
    return options.shared_memory and options.algorithm in SHARED


def some_ps(number):
    """Two trainers and so many sync PSs."""
    return replace(TWO, sync_ps=number)


PACED = [options(a, pace) for a in ALL for pace in ("shadow", "fixed_rate") if (a, pace) not in REFUSED]
PACED += [options("bmuf", bmuf=bmuf(eta=0.7, momentum=0.5))]
PACED += [replace(o, shared_memory=False) for o in PACED if o.algorithm in SHARED]
COUNTED = [options(a, "fixed_rate", alpha=alpha) for a in ("ma", "bmuf", "slowmo") for alpha in (0.3, 1.0)]
COUNTED += [options("bmuf", "fixed_rate", 3, bmuf=bmuf(eta=0.7, momentum=0.5))]
WAYS = (options, by_message)
DILOCO = bmuf(eta=0.7, momentum=0.9, nesterov=True)
BLOCKS = [
    bmuf(),
    bmuf(eta=0.7),
    bmuf(momentum=0.5),
    bmuf(momentum=0.5, nesterov=True),
    bmuf(eta=1.2, momentum=0.9, nesterov=True),
]
CASES = [
    *(Case(equal_replicas, check_equal_replicas, o) for o in PACED),
    *(Case(unequal_steps, check_unequal_steps, o, real=not moved_by_others(o)) for o in PACED),
    *(Case(counted_steps, check_counted_steps, o) for o in COUNTED),
    *(Case(unequal_rounds, check_unequal, way(a)) for a in AVERAGING for way in WAYS),
    *(Case(unequal_rounds, check_follows, way("ma", alpha=1.0)) for way in WAYS),
    *(Case(alone_at_the_end, check_alone, options(a, alpha=1.0)) for a in ("ma", "bmuf")),
    *(Case(one_round, check_mean, way("ma", alpha=1.0)) for way in WAYS),
    Case(one_round, check_mean, options("ma", "fixed_rate", alpha=1.0)),
    *(Case(learn_meanwhile, check_meanwhile, by_message(a, alpha=0.3)) for a in AVERAGING),
    *(Case(blocks, check_bmuf, way("bmuf", alpha=a, bmuf=b)) for b in BLOCKS for a in (0.5, 1.0) for way in WAYS),
    *(Case(blocks, check_diloco, way("bmuf", alpha=1.0, bmuf=DILOCO)) for way in WAYS),
    *(Case(blocks, check_bmuf, way("ma", alpha=a)) for a in (0.5, 1.0) for way in WAYS),  # BMUF with eta 1 is averaging
    *(Case(rounds_in_turn, check_easgd, way("easgd", alpha=0.3), some_ps(n)) for n in (1, 2, 3) for way in WAYS),
    *(Case(rounds_at_will, check_conserved, way("easgd"), some_ps(n)) for n in (1, 2, 3) for way in WAYS),
]  # fmt: skip


REAL = [case for case in CASES if case.topology == TWO and case.real]
FIRST = {(case.check, case.options.algorithm, case.options.shared_memory): case for case in reversed(REAL)}.values()


@pytest.mark.parametrize("case", CASES, ids=str)
def test_promise_over_threads(case):
    results = over_threads(case.topology, case.body, case.options)
    case.check(results[: case.topology.trainers], case.options)


@pytest.mark.parametrize("case", [*FIRST, *in_soak(*(case for case in REAL if case not in FIRST))], ids=str)
def test_promise_over_mpi(case):
    """CI has one case of each property, algorithm and transport."""
    case.check(over_mpi(TWO, case.body, case.options)[:2], case.options)


def test_several_sync_ps_give_the_same_as_one():
    """To the last bit: a center in shards is the same arithmetic."""
    one, two, three = (
        over_threads(replace(TWO, sync_ps=n), rounds_in_turn, options("easgd", alpha=0.3)) for n in (1, 2, 3)
    )
    for trainer in range(2):
        for a, b, c in zip(one[trainer], two[trainer], three[trainer], strict=True):
            np.testing.assert_array_equal(a, b)
            np.testing.assert_array_equal(a, c)
