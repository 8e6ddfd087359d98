"""What ``async_ps`` promises with a codec, exactly: nothing is lost, nothing counts twice, and what is left is kept."""

from dataclasses import replace

import numpy as np
import pytest
from ranks import over_threads
from sync_bodies import PARAMETERS, meet, on_trainers, options, replica, with_pace

from ssmpi import compress, sync
from ssmpi.core.errors import SettingsError, TrainingError
from ssmpi.core.log import log
from ssmpi.core.topology import Topology
from ssmpi.core.traffic import Link, Traffic
from ssmpi.model.options import DenseOptions
from ssmpi.sync import pushes

TWO = Topology(trainers=2, threads=2, embedding_ps=1, sync_ps=2)
ALONE = Topology(trainers=1, threads=1, embedding_ps=1, sync_ps=3)
LAYERS = (100, 101, 600, PARAMETERS)
CODECS = [f"{name}:0.9" if kind.takes_share else name for name, kind in compress.CODECS.items() if name != "dense"]
STEPS = {(0, 0): 7, (0, 1): 9, (1, 0): 12, (1, 1): 3}


def home_of(world):
    """A trainer whose replica has layers."""
    layers = sync.ReplicaMemory(layers=LAYERS)
    return sync.LocalTrainer(np.zeros(world.topology.threads, np.int64), replica=layers)


def whole_gradient(rank, thread, step):
    """Whole numbers that bfloat16 has, so that every sum is exact."""
    return np.random.default_rng([rank, thread, step]).integers(-3, 4, PARAMETERS).astype(np.float32)


def pushed(world, options):
    """Steps of all threads; the model, and what each of this trainer's threads has not sent."""
    weights, home, count = np.zeros(PARAMETERS, np.float32), home_of(world), [0, 0]
    world.traffic.on = True

    def gradients(thread):
        count[thread] += 1
        return whole_gradient(world.rank, thread, count[thread])

    def work(synchronizers):
        home.optimizer.state = dict  # plain descent remembers nothing
        steps = [STEPS[world.rank, thread] for thread in range(2)]
        with_pace(world, options, synchronizers, gradients, steps)
        left = [residual.copy() for residual, _ in home.unsent.values()]
        return synchronizers[0].model(), left, world.traffic.totals()[Link.CENTER_PUSH], synchronizers[0].state()

    return on_trainers(world, options, weights, work, home)


PACES = [("shadow", "thread"), ("fixed_rate", "thread"), ("fixed_rate", "trainer")]


@pytest.mark.parametrize(("pace", "by"), PACES)
@pytest.mark.parametrize("fragments", [1, 3])
@pytest.mark.parametrize("codec", CODECS)
def test_center_and_residuals_are_what_came(codec, fragments, pace, by, monkeypatch):
    """With the optimizer as plain as can be; and the bytes counted are those of the payloads' formula."""
    sizes, read_push = [], pushes.read_push

    def reading(message, gradients):
        """As a sync PS does it; and what the formula says of the message, at the counts that are in it."""
        at, size = pushes.HEAD, pushes.HEAD
        while at < message.size:
            sent = message[at : at + compress.length_of(message[at:])]
            size += compress.payload_bytes(int(sent[0]), gradients.size, [compress.count_of(sent)[1]])
            at += sent.size
        sizes.append(size)
        return read_push(message, gradients)

    monkeypatch.setattr(pushes, "read_push", reading)
    chosen = options("async_ps", pace, codec=codec, fragments=fragments, by=by, life_span=5)
    results = over_threads(TWO, pushed, chosen)[:2]
    total = sum(whole_gradient(*who, step) for who, n in STEPS.items() for step in range(1, n + 1))
    left = sum(residual for _, residuals, _, _ in results for residual in residuals)
    for model, *_ in results:
        np.testing.assert_array_equal(-model + left, total)
    assert codec == "bf16" or np.any(left)
    assert sum(counted for _, _, counted, _ in results) == sum(sizes) + 4 * PARAMETERS  # and the first one's start


def stepped(world, options):
    """One thread's steps by real-valued gradients, each pushed at once."""
    weights, count = replica(0), [0]

    def gradients(thread):
        count[0] += 1
        return replica(count[0])

    def work(synchronizers):
        world.traffic.on = True
        with_pace(world, options, synchronizers, gradients, [20])
        world.traffic.on = False
        return synchronizers[0].model(), weights.copy(), world.traffic.totals()[Link.CENTER_PUSH]

    return on_trainers(world, options, weights, work, home_of(world), DenseOptions(optimizer="adagrad", rate=0.1))


@pytest.mark.parametrize("fragments", [1, 3])
@pytest.mark.parametrize("codec", ["threshold:0", "threshold:0:whole", "random-k:0"])
def test_dropping_nothing_is_dense_to_the_last_bit(codec, fragments):
    dense = options("async_ps", "fixed_rate", 1, fragments=fragments)
    expected, found = (over_threads(ALONE, stepped, replace(dense, codec=name))[0][:2] for name in ("dense", codec))
    for one, other in zip(expected, found, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("codec", ["bf16", "threshold:0.9:whole", "threshold:0.5:whole", "threshold:0.9:bf16:whole"])
def test_a_push_is_as_long_as_plan_says(codec):
    """Where every push sends just the share that is asked for, and all of a shard has one threshold."""
    chosen = options("async_ps", "fixed_rate", 1, codec=codec, life_span=1)
    formula = sync.ALGORITHMS["async_ps"].round_bytes(chosen, ALONE, PARAMETERS)[Link.CENTER_PUSH]
    nothing = 3 * pushes.HEAD  # the round that closes the run
    assert over_threads(ALONE, stepped, chosen)[0][2] == 20 * formula + nothing


def test_final_weights_are_dense_ones_and_what_was_not_sent():
    """Descent at a constant rate by a fixed list of gradients, one trainer (the paper's fifth invariant)."""
    one = replace(TWO, trainers=1)
    chosen = options("async_ps", "fixed_rate", 1, codec="threshold:0.95", life_span=4)
    dense, _, _, _ = over_threads(one, pushed, replace(chosen, codec="dense"))[0]
    model, left, _, _ = over_threads(one, pushed, chosen)[0]
    np.testing.assert_array_equal(model, dense + sum(left))


# Elastic exchanges of some entries


def elastic(world, options, alone=False):
    """Blocks of learning, each with a round of every trainer in turn; weights, and what the center then holds."""
    weights = replica(world.rank)
    home = home_of(world)

    def work(synchronizers):
        own, found = synchronizers[0], []
        for turn in range(9):
            if turn % world.trainers.size == world.rank:
                weights[:] += 0.1 * replica(100 + turn)
                before = world.traffic.by_name()
                world.traffic.on = True
                own.round()
                world.traffic.on = False
                sent = {name: size - before[name] for name, size in world.traffic.by_name().items()}
            else:
                sent = None
            meet(world)
            found.append((weights.copy(), own.fetch(), sent))
            meet(world)
        return found

    return on_trainers(world, options, weights, work, home)


@pytest.mark.parametrize("fragments", [1, 3])
@pytest.mark.parametrize("codec", ["threshold:0.9", "threshold:0.9:whole", "random-k:0.9"])
def test_elastic_exchanges_conserve_each_entry(codec, fragments):
    """At the entries that move, both move by alpha of their distance; all others rest. And no byte more is sent."""
    chosen = options("easgd", codec=codec, fragments=fragments, alpha=0.3, life_span=1)
    by_trainer = over_threads(TWO, elastic, chosen)[:2]
    center = replica(0)
    for turn, (weights, after, sent) in ((turn, by_trainer[turn % 2][turn]) for turn in range(9)):
        before = by_trainer[turn % 2][turn - 1][0] if turn else replica(0)
        learned = (before + 0.1 * replica(100 + turn)).astype(np.float32)
        moved = after != center
        assert 0 < moved.sum() <= sent["entries_sent"] <= 0.2 * PARAMETERS
        d = 0.3 * (learned.astype(float) - center)
        np.testing.assert_allclose(after, np.where(moved, center + d, center), rtol=0, atol=1e-6)
        np.testing.assert_allclose(weights, np.where(moved, learned - d, learned), rtol=0, atol=1e-6)
        assert sent["bytes_center_pull"] == 4 * sent["entries_sent"]
        if codec == "threshold:0.9:whole" and fragments == 1:
            formula = sync.ALGORITHMS["easgd"].round_bytes(chosen, TWO, PARAMETERS)
            assert [sent["bytes_center_push"], sent["bytes_center_pull"]] == list(formula.values())
        center = after


@pytest.mark.parametrize("fragments", [1, 3])
def test_elastic_exchanges_that_drop_nothing_are_whole_ones(fragments):
    """Of one trainer, which has seen all that the center holds: to the last bit."""
    one = replace(TWO, trainers=1)
    whole = options("easgd", fragments=fragments, alpha=0.3, transport="messages")
    expected, found = (over_threads(one, elastic, o)[0] for o in (whole, replace(whole, codec="threshold:0")))
    for (weights, center, _), (others, seen, _) in zip(expected, found, strict=True):
        np.testing.assert_array_equal(weights, others)
        np.testing.assert_array_equal(center, seen)


def closed(world, options):
    """Learning, some rounds, and the end of a part of the run."""
    weights = replica(world.rank)

    def work(synchronizers):
        for turn in range(3):
            weights[:] += 0.1 * replica(100 + turn)
            synchronizers[0].round()
        before = weights.copy(), synchronizers[0].fetch()
        synchronizers[0].close()
        return before, (weights.copy(), synchronizers[0].fetch())

    return on_trainers(world, options, weights, work, home_of(world))


def test_a_part_ends_with_an_exchange_of_all():
    """Else the center would never hear of what stays below the threshold."""
    chosen = options("easgd", codec="threshold:0.9", fragments=3, alpha=0.3)
    (weights, center), (after, moved) = over_threads(replace(TWO, trainers=1), closed, chosen)[0]
    d = 0.3 * (weights - center)
    assert (d != 0).mean() > 0.8
    np.testing.assert_allclose(after, weights - d, rtol=0, atol=1e-6)
    np.testing.assert_allclose(moved, center + d, rtol=0, atol=1e-6)


# State


def resumed(world, options, saved):
    """What is in the accounts of a trainer that goes on from what another one of its number has saved."""
    weights, home = np.zeros(PARAMETERS, np.float32), home_of(world)

    def work(synchronizers):
        home.optimizer.state = dict
        synchronizers[0].resume(saved[min(world.rank, len(saved) - 1)])
        return {thread: (residual.copy(), state.copy()) for thread, (residual, state) in home.unsent.items()}

    return on_trainers(world, options, weights, work, home)


@pytest.fixture
def warnings(monkeypatch):
    """What the log warns of."""
    said = []
    monkeypatch.setattr(log, "warning", lambda text, *_: said.append(text))
    return said


@pytest.mark.parametrize("by", ["thread", "trainer"])
def test_what_was_not_sent_outlasts_a_checkpoint(by, warnings):
    """Of every thread, also where each has a synchronizer of its own; and thresholds with it."""
    chosen = options("async_ps", "fixed_rate", codec="threshold:0.9", by=by)
    before = over_threads(TWO, pushed, chosen)[:2]
    states = [{name: values.copy() for name, values in state.items()} for *_, state in before]
    after = over_threads(TWO, resumed, chosen, states)[:2]
    for (_, residuals, _, state), found in zip(before, after, strict=True):
        for thread, residual in enumerate(residuals):
            assert residual.any()
            np.testing.assert_array_equal(found[thread][0], residual)
            codec = next(values for name, values in state.items() if name.endswith(f"codec {thread}"))
            np.testing.assert_array_equal(found[thread][1], codec)
    one = over_threads(replace(TWO, threads=1), resumed, chosen, states)[:2]  # the only thread takes those of both
    for (_, residuals, _, _), found in zip(before, one, strict=True):
        np.testing.assert_array_equal(found[0][0], sum(residuals))
    assert warnings == []


@pytest.mark.parametrize("codec", ["threshold:0.9", "dense"])
def test_what_nobody_can_take_over_is_dropped_and_said(codec, warnings):
    """Three trainers for two, each of which is given the first one's arrays; and a run that has no place for them."""
    chosen = options("async_ps", codec="threshold:0.9")
    states = [dict(state) for *_, state in over_threads(TWO, pushed, chosen)[:2]]
    after = replace(TWO, trainers=3) if codec != "dense" else TWO
    given = states[:1] if codec != "dense" else states
    for found in over_threads(after, resumed, replace(chosen, codec=codec), given)[: after.trainers]:
        assert not any(residual.any() for residual, _ in found.values())
    assert len(warnings) == 1
    assert "dropped" in warnings[0]


# What is refused


def diverging(world, options, value):
    """One gradient is not finite, after some that are."""
    weights, count = np.zeros(PARAMETERS, np.float32), [0]

    def gradients(thread):
        count[0] += 1
        bad = np.zeros(PARAMETERS, np.float32)
        bad[17] = value if count[0] == 3 else 1.0
        return bad

    return on_trainers(
        world, options, weights, lambda own: with_pace(world, options, own, gradients, [9]), home_of(world)
    )


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("codec", CODECS)
def test_divergence_ends_the_run(codec, value):
    """A residual would hide it for ever."""
    chosen = options("async_ps", "fixed_rate", 1, codec=codec, refresh="plain")
    with pytest.raises(TrainingError, match="not finite"):
        over_threads(ALONE, diverging, chosen, value)


@pytest.mark.parametrize("algorithm", [name for name in sync.ALGORITHMS if name not in ("async_ps", "easgd")])
def test_what_an_algorithm_cannot_carry_is_refused_with_the_reason(algorithm):
    pace = "fixed_rate" if algorithm == "synchronous" else "shadow"
    options(algorithm, pace, codec="dense")
    with pytest.raises(SettingsError, match=f"algorithm = '{algorithm}' .*: set sync.codec = 'dense'"):
        options(algorithm, pace, codec="threshold:0.9")


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"codec": "bf16"}, "only threshold and random-k"),
        ({"codec": "threshold:0.9:bf16"}, "16 bits"),
        ({"codec": "threshold:0.9", "merge": "interpolate"}, "merge = 'difference'"),
        ({"codec": "threshold:0.9", "easgd": sync.easgd.EASGDOptions(coupling=0.1)}, "coupling = 0"),
    ],
)
def test_elastic_rounds_refuse_what_would_not_be_exact(settings, why):
    with pytest.raises(SettingsError, match=why):
        options("easgd", **settings)


def test_a_damaged_push_is_refused():
    payload = compress.make("threshold:0.9", compress.CodecOptions(), 50).take(replica(1)[:50].copy())
    whole = pushes.message([payload], 1.0, Traffic())
    assert pushes.read_push(whole, np.zeros(50, np.float32)) == 1.0
    for damaged in (whole[:-4], np.append(whole, np.zeros(4, np.uint8)), whole[: pushes.HEAD + 4]):
        with pytest.raises(compress.PayloadError):
            pushes.read_push(damaged, np.zeros(50, np.float32))
