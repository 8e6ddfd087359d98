"""Trainers and threads with different numbers of steps, in two parts of a run: a property of ``test_sync``, with what
is to come of it for every algorithm.
"""

import numpy as np
from sync_bodies import PARAMETERS, in_turns, live, on_trainers, replica, threads_of, turns, with_pace

from ssmpi import sync

STEPS = (([7, 0], [12, 3]), ([1, 23], [0, 0]))  # of two parts, by trainer and thread
COUNTS = ((7, 15), (24, 0))  # of two parts, by trainer


def lesson(trainer, thread):
    """What one step of a thread adds to every parameter."""
    return 1e-3 * (1 + thread + 2 * trainer)


def unequal_steps(world, options):
    """Threads step and merges happen one after the other here: elsewhere two at once may lose one of them, as
    is meant.
    """
    weights = live(world, options, 0)

    def gradients(thread):
        return np.full(PARAMETERS, -lesson(world.rank, thread), np.float32)

    def work(synchronizers):
        models, turn = [], turns(world)
        synchronizers[0].context.local.optimizer.step = in_turns(turn, synchronizers[0].context.local.optimizer.step)
        for synchronizer in synchronizers:
            synchronizer.exchange.merge = in_turns(turn, synchronizer.exchange.merge)
        for part in STEPS:
            with_pace(world, options, synchronizers, gradients, threads_of(options, *part[world.rank]))
            models.append(synchronizers[0].model())
            np.testing.assert_array_equal(models[-1], synchronizers[0].model(), "a model asked for twice is the same")
        return weights.copy(), *models, sum(s.exchange.tally[0] for s in synchronizers)

    return on_trainers(world, options, weights, work)


def learned_by(trainer, parts):
    """By all threads of a trainer in the first ``parts`` parts."""
    return sum(n * lesson(trainer, thread) for part in STEPS[:parts] for thread, n in enumerate(part[trainer]))


def check_unequal_steps(results, options):
    """Threads and trainers with different numbers of iterations, two parts: all end, with the same model, and what was
    learned is in it: to the last step where nothing may be lost, within its bounds where a trainer that is done follows
    the others.
    """
    for part in (1, 2):
        np.testing.assert_array_equal(results[0][part], results[1][part])
    start, kind = replica(0).astype(float), sync.algorithm_of(options)
    if options.algorithm == "easgd":  # what there is in replicas and center together is what was learned
        (first, *_), (second, _, center, _) = results
        expected = 3 * start + learned_by(0, 2) + learned_by(1, 2)
        np.testing.assert_allclose(first.astype(float) + second + center, expected, rtol=0, atol=2e-5)
    for parts, model in enumerate(results[0][1:3], 1):
        least, most = bounds_of_unequal_steps(options.algorithm, parts)
        if kind.partner == sync.ALL_TRAINERS and options.pace == "shadow" and parts == 2:
            least = 0.0  # whoever has ended follows, for any number of rounds, one that has not begun to step
        gain = options.bmuf.eta / (1 - options.bmuf.momentum) if options.algorithm == "bmuf" else 1.0
        assert np.all(model > start + least - 1e-5)
        assert np.all(model < start + most * max(1.0, gain) + 1e-5)
    if not kind.partner and not kind.in_the_step:
        assert all(result[3] == 0 for result in results)
        np.testing.assert_array_equal(results[1][2], results[0][0])
    else:
        assert any(result[3] > 0 for result in results)


def bounds_of_unequal_steps(algorithm, parts):
    """How far the model has come at least and at most; the same where it is known."""
    own = [learned_by(trainer, parts) for trainer in range(2)]
    together = 0.0
    if algorithm == "synchronous":  # one thread each: the mean of those that have a step, one thread after the other
        counts = [[sum(part[trainer]) for trainer in range(2)] for part in STEPS[:parts]]
        for left, right in counts:
            both = min(left, right)
            together += both * (lesson(0, 0) + lesson(1, 0)) / 2
            together += (left - both) * lesson(0, 0) + (right - both) * lesson(1, 0)
        return together, together
    exact = {"none": own[0], "async_ps": sum(own), "gossip": sum(own) / 2}
    if algorithm in exact:
        return exact[algorithm], exact[algorithm]
    least = min(own) / 4 if algorithm in ("easgd", "ma", "bmuf", "slowmo") else 0.0  # another one may learn slower
    return least, sum(own) * (2 if algorithm == "slowmo" else 1)


def counted_steps(world, options):
    """As above with one thread each, so that a round in the foreground comes at a known place."""
    weights = replica(0)

    def gradients(thread):
        return np.full(PARAMETERS, -lesson(world.rank, thread), np.float32)

    def work(synchronizers):
        models = []
        for counts in COUNTS:
            with_pace(world, options, synchronizers, gradients, [counts[world.rank]])
            models.append(synchronizers[0].model())
        return weights.copy(), *models, synchronizers[0].exchange.rounds

    return on_trainers(world, options, weights, work)


def check_counted_steps(results, options):
    """Averages in float64: a trainer that is done has no weight in the mean any more, and follows it."""
    eta, momentum = {
        "ma": (1.0, 0.0),
        "bmuf": (options.bmuf.eta, options.bmuf.momentum),
        "slowmo": (options.slowmo.rate, options.slowmo.momentum),
    }[options.algorithm]
    w, g, delta = [0.0, 0.0], 0.0, 0.0  # how far from the start
    every = options.every_iterations
    for part, counts in enumerate(COUNTS, 1):
        rounds = [count // every for count in counts]
        done = [0, 0]
        for turn in range(max(rounds)):
            for trainer in range(2):
                now = every * (turn + 1) if turn < rounds[trainer] else counts[trainer]
                w[trainer] += (now - done[trainer]) * lesson(trainer, 0)
                done[trainer] = now
            there = [w[trainer] for trainer in range(2) if turn < rounds[trainer]]
            delta = momentum * delta + eta * (sum(there) / len(there) - g)
            g += delta
            w = [each + options.alpha * (g - each) for each in w]
        w = [each + (counts[t] - done[t]) * lesson(t, 0) for t, each in enumerate(w)]
        delta = momentum * delta + eta * (sum(w) / 2 - g)
        g += delta
        model = sum(w) / 2 if options.algorithm == "ma" else g
        if options.algorithm != "ma":  # the last block moves replicas as any other does
            w = [each + options.alpha * (g - each) for each in w]
        for result in results:
            np.testing.assert_allclose(result[part], replica(0).astype(float) + model, rtol=0, atol=2e-5)
    for trainer, (weights, *_, found) in enumerate(results):
        np.testing.assert_allclose(weights, replica(0).astype(float) + w[trainer], rtol=0, atol=2e-5)
        assert found == sum(counts[trainer] // every for counts in COUNTS)
