"""What ``async_ps`` promises with a codec on its pulls: trainers hold what they are told, in the bytes planned."""

from dataclasses import replace

import numpy as np
import pytest
from centers import center_alone
from ranks import over_threads
from sync_bodies import PARAMETERS, meet, on_trainers, options, replica
from test_codecs import CODECS, TWO, home_of

from ssmpi import compress, sync
from ssmpi.runtime.errors import SettingsError, TrainingError
from ssmpi.runtime.topology import Role
from ssmpi.runtime.traffic import Link
from ssmpi.sync.async_ps import AsyncPS

ONE = replace(TWO, trainers=1)


def rounds(world, options, number=12):
    """Steps with a round each, trainers in turns; after each of this one's its replica, what it was told of the
    center so far, and the bytes. At last what the center is.
    """
    weights, held, home = replica(0), replica(0), home_of(world)

    def work(synchronizers):
        own, found = synchronizers[0], []
        exchange = own.exchange.reference

        def heard(snapshot, fragment, active):
            held[own.fragments[fragment]] = reference = exchange(snapshot, fragment, active)
            return reference

        own.exchange.reference = heard
        step, home.optimizer.state = own.optimizer(0), dict
        for turn in range(number):
            if turn % world.trainers.size == world.rank:
                home.optimizer.gradients[:] = 0.1 * replica(100 + turn)
                step.step(home.optimizer, 1.0)
                before = world.traffic.totals()
                world.traffic.on = True
                own.round()
                world.traffic.on = False
                found.append((weights.copy(), held.copy(), world.traffic.totals() - before))
            meet(world)
        return found, own.exchange.fetch()

    return on_trainers(world, options, weights, work, home)


@pytest.mark.parametrize("fragments", [1, 3])
@pytest.mark.parametrize("codec", ["dense", "threshold:0.9"])
@pytest.mark.parametrize("pull", CODECS)
def test_a_replica_follows_what_it_was_told(pull, codec, fragments):
    """Where it is told an entry it holds the center's, to the last bit; elsewhere what it held before."""
    chosen = options("async_ps", codec=codec, pull_codec=pull, fragments=fragments)
    (whole, end), (some, last) = (over_threads(ONE, rounds, replace(chosen, pull_codec=p))[0] for p in ("dense", pull))
    np.testing.assert_array_equal(end, last)  # of one trainer and given gradients, pulls do not change what is pushed
    before, coding = replica(0), compress.make(pull, compress.CodecOptions(), PARAMETERS)
    for (weights, held, sent), (_, center, _) in zip(some, whole, strict=True):
        told = held != before
        if not coding.half:
            np.testing.assert_array_equal(held[told], center[told])
        if fragments == 1:
            np.testing.assert_allclose(weights, held, rtol=0, atol=1e-6)
        assert 0 < told.sum() <= PARAMETERS * (0.4 if coding.takes_share else 1)
        assert 0 < sent[Link.CENTER_PULL] < 4 * PARAMETERS
        before = held


def test_pulls_that_drop_nothing_are_whole_ones():
    """Of several trainers, each with a mirror of its own; to the last bit, and in fewer bytes, because few entries
    have changed.
    """
    chosen = options("async_ps", codec="threshold:0.9", life_span=5)
    whole, some = (over_threads(TWO, rounds, replace(chosen, pull_codec=p))[:2] for p in ("dense", "threshold:0"))
    for (expected, _), (found, _) in zip(whole, some, strict=True):
        for (_, center, _), (_, held, sent) in zip(expected, found, strict=True):
            np.testing.assert_array_equal(held, center)
            assert sent[Link.CENTER_PULL] < 0.6 * 4 * PARAMETERS


def test_no_more_is_pulled_than_was_pushed():
    """What the plan says of pulls that drop nothing: the entries that pushes of four threads may have changed."""
    chosen = options("async_ps", "fixed_rate", codec="threshold:0.99", pull_codec="threshold:0", life_span=1)
    found = sync.ALGORITHMS["async_ps"].cost(chosen, TWO, PARAMETERS).sent[Link.CENTER_PULL]
    sizes = [part.stop - part.start for part in sync.shards.shards(PARAMETERS, 1, 2)[0]]
    kind = compress.CODECS["threshold"]
    assert found == sum(kind.expected_bytes(compress.CodecOptions(0.96), size) for size in sizes)


@pytest.mark.parametrize("pull", ["bf16", "threshold:0.9", "threshold:0.9:bf16", "threshold:0.5"])
def test_a_pull_is_as_long_as_plan_says(pull):
    """Where each sends just the share that is asked for: with a threshold found anew in each."""
    chosen = options("async_ps", pull_codec=pull, life_span=1)
    formula = sync.ALGORITHMS["async_ps"].cost(chosen, TWO, PARAMETERS).sent[Link.CENTER_PULL]
    for found, _ in over_threads(TWO, rounds, chosen)[:2]:
        assert {sent[Link.CENTER_PULL] for _, _, sent in found} == {formula}


def test_a_client_that_fetches_begins_anew_from_there():
    """As after a kill or from a checkpoint, whatever its mirror was before; other clients keep theirs."""
    chosen = options("async_ps", pull_codec="threshold:0.9")
    center, still = center_alone(chosen), np.zeros(PARAMETERS + 1, np.float32).view(np.uint8)
    center.start(0, replica(0))
    for client in ((0, 0), (1, 0)):
        center.fetched(0, client)
    center.answer(0, (0, 0), np.append(replica(1), np.float32(1.0)).view(np.uint8))
    center.fetched(0, (0, 0))
    assert compress.count_of(center.answer(0, (0, 0), still))[1] == 0
    assert compress.count_of(center.answer(0, (1, 0), still))[1] > 0.05 * PARAMETERS


def test_only_who_pulls_weights_has_a_codec_for_it():
    with pytest.raises(SettingsError, match="only algorithm = 'async_ps' pulls weights"):
        options("easgd", pull_codec="threshold:0.9")
    with pytest.raises(SettingsError, match="codec is one of"):
        options("async_ps", pull_codec="nothing")


def test_the_memory_of_mirrors_is_that_of_every_client():
    """Two trainers of two threads: a vector for each that pulls, at both ends, and payloads."""
    chosen = options("async_ps", "fixed_rate", pull_codec="threshold:0.9:whole")
    for pace, clients in (("fixed_rate", 2), ("shadow", 1)):
        found = AsyncPS.cost(replace(chosen, pace=pace), TWO, PARAMETERS).mirrors
        assert found == {Role.TRAINER: clients, Role.SYNC_PS: 2 * (2 * clients) + 1}
    assert AsyncPS.cost(replace(chosen, pull_codec="dense"), TWO, PARAMETERS).mirrors == {}


def warmed_up(world, options):
    """Replicas that a warm-up has moved, alike, and then a round of each synchronizer: what they hold."""
    weights, home = replica(0), home_of(world)

    def work(synchronizers):
        home.optimizer.state = dict
        weights[:] = replica(1)
        synchronizers[0].restart()
        for thread, own in enumerate(synchronizers):
            home.optimizer.gradients[:] = 1e-3 * replica(100 + thread)
            own.optimizer(thread).step(home.optimizer, 1.0)
            own.round()
        return weights.copy()

    return on_trainers(world, options, weights, work, home)


@pytest.mark.parametrize("pace", ["shadow", "fixed_rate"])
@pytest.mark.parametrize("pull", ["threshold:0", "threshold:0.99", "bf16"])
def test_pulls_after_a_warm_up_begin_from_its_weights(pull, pace):
    """On every trainer and for each thread: none is told in pieces, from the initial weights on, where they are now."""
    chosen = options("async_ps", pace, pull_codec=pull)
    for weights in over_threads(TWO, warmed_up, chosen)[:2]:
        np.testing.assert_allclose(weights, replica(1), rtol=0, atol=0.05)


def diverged(world, options):
    """A gradient of NaN, pushed as it is."""
    weights, home = replica(0), home_of(world)

    def work(synchronizers):
        home.optimizer.state = dict
        home.optimizer.gradients[17] = np.nan
        synchronizers[0].optimizer(0).step(home.optimizer, 1.0)
        synchronizers[0].round()

    return on_trainers(world, options, weights, work, home)


@pytest.mark.parametrize("pull", CODECS)
def test_divergence_of_the_center_ends_the_run(pull):
    """A mirror would hide it for ever."""
    with pytest.raises(TrainingError, match="not finite"):
        over_threads(ONE, diverged, options("async_ps", pull_codec=pull))
