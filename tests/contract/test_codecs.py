"""What algorithms promise with a codec, exactly: nothing is lost, nothing counts twice, and what is left is kept."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from ranks import over_threads
from sync_bodies import PARAMETERS, meet, on_trainers, options, replica, with_pace

from ssmpi import compress, sync
from ssmpi.model.options import DenseOptions
from ssmpi.runtime.errors import SettingsError, TrainingError
from ssmpi.runtime.files.log import log
from ssmpi.runtime.mpi.rank_memory import ProcessMemory
from ssmpi.runtime.topology import Topology
from ssmpi.runtime.traffic import Link, Traffic
from ssmpi.sync import async_ps

GOLDEN = Path(__file__).parents[1] / "golden"
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


PACES = ["shadow", "fixed_rate"]


@pytest.mark.parametrize("pace", PACES)
@pytest.mark.parametrize("codec", CODECS)
def test_center_and_residuals_are_what_came(codec, pace, monkeypatch):
    """With the optimizer as plain as can be; and the bytes counted are those of the payloads' formula."""
    sizes, read_push = [], async_ps.read_push

    def reading(message, gradients):
        """As a sync PS does it; and what the formula says of the message, at the counts that are in it."""
        at, size = async_ps.HEAD, async_ps.HEAD
        while at < message.size:
            sent = message[at : at + compress.length_of(message[at:])]
            size += compress.payload_bytes(int(sent[0]), gradients.size, [compress.count_of(sent)[1]])
            at += sent.size
        sizes.append(size)
        return read_push(message, gradients)

    monkeypatch.setattr(async_ps, "read_push", reading)
    chosen = options("async_ps", pace, codec=codec, threshold_interval=5)
    results = over_threads(TWO, pushed, chosen)[:2]
    total = sum(whole_gradient(*who, step) for who, n in STEPS.items() for step in range(1, n + 1))
    left = sum(residual for _, residuals, _, _ in results for residual in residuals)
    for model, *_ in results:
        np.testing.assert_array_equal(-model + left, total)
    assert "threshold" not in codec or np.any(left)
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


@pytest.mark.parametrize("codec", ["threshold:0", "threshold:0:whole", "random-k:0"])
def test_dropping_nothing_is_dense_to_the_last_bit(codec):
    dense = options("async_ps", "fixed_rate", 1)
    expected, found = (over_threads(ALONE, stepped, replace(dense, codec=name))[0][:2] for name in ("dense", codec))
    for one, other in zip(expected, found, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("codec", ["bf16", "threshold:0.9:whole", "threshold:0.5:whole", "threshold:0.9:bf16:whole"])
def test_a_push_is_as_long_as_plan_says(codec):
    """Where every push sends just the share that is asked for, and all of a shard has one threshold."""
    chosen = options("async_ps", "fixed_rate", 1, codec=codec, threshold_interval=1)
    formula = sync.ALGORITHMS["async_ps"].cost(chosen, ALONE, PARAMETERS).sent[Link.CENTER_PUSH]
    nothing = 3 * async_ps.HEAD  # the round that closes the run
    assert over_threads(ALONE, stepped, chosen)[0][2] == 20 * formula + nothing


def test_final_weights_are_dense_ones_and_what_was_not_sent():
    """Descent at a constant rate by a fixed list of gradients, one trainer (the paper's fifth invariant)."""
    one = replace(TWO, trainers=1)
    chosen = options("async_ps", "fixed_rate", 1, codec="threshold:0.95", threshold_interval=4)
    dense, _, _, _ = over_threads(one, pushed, replace(chosen, codec="dense"))[0]
    model, left, _, _ = over_threads(one, pushed, chosen)[0]
    np.testing.assert_array_equal(model, dense + sum(left))


# Rounds by mirrors


def taught(world, options):
    """Learning in turns, each with a round. Weights, what the center then holds, and what was sent."""
    weights = replica(world.rank)

    def work(synchronizers):
        own, found = synchronizers[0], []
        for turn in range(9):
            sent = None
            if turn % 2 == world.rank:
                weights[:] += 0.1 * replica(100 + 10 * turn)
                before = world.traffic.by_name()
                world.traffic.on = True
                own.round()
                world.traffic.on = False
                sent = {name: size - before[name] for name, size in world.traffic.by_name().items()}
            meet(world)
            found.append((weights.copy(), own.exchange.fetch(), sent))
            meet(world)
        own.close()
        return found, weights.copy(), own.model()

    return on_trainers(world, options, weights, work, home_of(world))


@pytest.mark.parametrize("codec", CODECS)
def test_elastic_exchanges_conserve_the_sum(codec):
    """Of both replicas, the center and what was learned, at every entry and after every exchange, whatever is told."""
    chosen = options("easgd", codec=codec, alpha=0.3, threshold_interval=3)
    (first, *one), (second, *other) = over_threads(TWO, taught, chosen)[:2]
    total = replica(0).astype(float) + replica(0) + replica(1)
    for turn, ((left, center, _), (right, _, _)) in enumerate(zip(first, second, strict=True)):
        total += 0.1 * replica(100 + 10 * turn)
        np.testing.assert_allclose(left.astype(float) + right + center, total, rtol=0, atol=2e-5)
    np.testing.assert_allclose(one[0].astype(float) + other[0] + one[1], total, rtol=0, atol=2e-5)


@pytest.mark.parametrize("codec", ["threshold:0", "threshold:0:whole", "random-k:0"])
def test_rounds_that_drop_nothing_are_whole_ones(codec):
    """To the last bit: both replicas, and the center."""
    whole = options("easgd", alpha=0.3, shared_memory=False)
    expected, found = (over_threads(TWO, taught, o)[:2] for o in (whole, replace(whole, codec=codec)))
    for (turns, *_), (others, *_) in zip(expected, found, strict=True):
        for (weights, center, _), (seen, told, _) in zip(turns, others, strict=True):
            np.testing.assert_array_equal(weights, seen)
            np.testing.assert_array_equal(center, told)


@pytest.mark.parametrize("codec", ["bf16", "threshold:0.9:whole", "threshold:0.5:whole"])
def test_a_round_by_mirrors_is_as_long_as_plan_says(codec):
    """Where every payload sends just the share that is asked for; the first round is whole."""
    chosen = options("easgd", codec=codec, threshold_interval=1, alpha=0.3)
    formula = sync.ALGORITHMS["easgd"].cost(chosen, TWO, PARAMETERS).sent
    for found, *_ in over_threads(TWO, taught, chosen)[:2]:
        for link, size in formula.items():
            first, *others = [sent[f"bytes_{link.name.lower()}"] for _, _, sent in found if sent]
            assert first > 3.9 * PARAMETERS
            assert set(others) == {size}


def closed(world, options):
    """Learning, some rounds, and the end of a part of the run."""
    weights = replica(world.rank)

    def work(synchronizers):
        for turn in range(6):
            weights[:] += 0.1 * replica(100 + turn)
            synchronizers[0].round()
        before = weights.copy(), synchronizers[0].exchange.fetch()
        synchronizers[0].close()
        return before, (weights.copy(), synchronizers[0].exchange.fetch())

    return on_trainers(world, options, weights, work, home_of(world))


def test_a_part_ends_with_an_exchange_of_all():
    """Else the center would never hear of what stays below the threshold."""
    chosen = options("easgd", codec="threshold:0.9", alpha=0.3)
    (weights, center), (after, moved) = over_threads(replace(TWO, trainers=1), closed, chosen)[0]
    d = 0.3 * (weights - center)
    assert (d != 0).mean() > 0.8
    np.testing.assert_allclose(after, weights - d, rtol=0, atol=1e-6)
    np.testing.assert_allclose(moved, center + d, rtol=0, atol=1e-6)


@pytest.mark.parametrize("pace", PACES)
def test_threads_train_with_rounds_by_mirrors(pace):
    """Whatever they meet in, what both have learned is in the model: descent by gradients whose sum is known."""
    results = over_threads(TWO, descended, options("easgd", pace, codec="threshold:0.9"))[:2]
    total = sum(whole_gradient(*who, step) for who, n in STEPS.items() for step in range(1, n + 1)).astype(float)
    weights = sum(found.astype(float) for found, _ in results)
    np.testing.assert_allclose(weights + results[0][1], -total, rtol=0, atol=2e-3)


def descended(world, options):
    """Steps of all threads; the replica and the model."""
    weights, count = np.zeros(PARAMETERS, np.float32), [0, 0]

    def gradients(thread):
        count[thread] += 1
        return whole_gradient(world.rank, thread, count[thread])

    def work(synchronizers):
        with_pace(world, options, synchronizers, gradients, [STEPS[world.rank, thread] for thread in range(2)])
        return weights.copy(), synchronizers[0].model()

    return on_trainers(world, options, weights, work, home_of(world))


class Kept(ProcessMemory):
    """Memory whose arrays a later process finds."""

    def __init__(self):
        self.arrays = {}

    def array(self, name, shape, dtype):
        return self.arrays.setdefault(name, np.zeros(shape, dtype))


# State


def resumed(world, options, saved):
    """The pending gradients of a trainer that goes on from what another one of its number has saved."""
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


@pytest.mark.parametrize("pace", PACES)
def test_what_was_not_sent_outlasts_a_checkpoint(pace, warnings):
    """Of every thread, also where each has a synchronizer of its own; and thresholds with it."""
    chosen = options("async_ps", pace, codec="threshold:0.9")
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


def test_unsent_gradients_of_before_are_resumed():
    """``unsent.npz`` is what an earlier version saved of this run, gradients of whole numbers: names, layout and bits
    are the same, and a trainer takes them over.
    """
    chosen = options("async_ps", "fixed_rate", codec="threshold:0.9", threshold_interval=5)
    with np.load(GOLDEN / "unsent.npz") as record:
        before = [{name[2:]: record[name] for name in record if name.startswith(f"{rank}/")} for rank in range(2)]
    saved = [state for *_, state in over_threads(TWO, pushed, chosen)[:2]]
    for rank, (found, state) in enumerate(zip(over_threads(TWO, resumed, chosen, before)[:2], before, strict=True)):
        assert set(state) == set(saved[rank])
        for thread in range(2):
            for name, values in zip(("residual", "codec"), found[thread], strict=True):
                expected = state[f"trainer {rank} of 2/{name} {thread}"]
                np.testing.assert_array_equal(values, expected)
                np.testing.assert_array_equal(saved[rank][f"trainer {rank} of 2/{name} {thread}"], expected)


@pytest.mark.parametrize("algorithm", ["async_ps", "easgd"])
def test_the_arrays_in_memory_have_the_names_of_before(algorithm):
    """A later version finds what an earlier one has left there."""
    unsent = {"gradients of thread 0": (PARAMETERS,), "codec of thread 0": ((1 + 3) + (1 + 2),)}  # layers of two shards
    names = {"async_ps": unsent, "easgd": {}}
    for found in over_threads(replace(TWO, threads=1), remembered, options(algorithm, codec="threshold:0.9"))[:2]:
        assert found == names[algorithm]


def remembered(world, options):
    """The arrays that this trainer's memory holds."""
    home = home_of(world)
    home.memory = Kept()
    on_trainers(world, options, replica(0), lambda _: None, home)
    return {name: values.shape for name, values in home.memory.arrays.items() if not name.startswith("pushes")}


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


def joined(world, options):
    """A trainer that has lost its memory."""
    weights = np.zeros(PARAMETERS, np.float32)
    return on_trainers(world, options, weights, lambda own: own[0].exchange.adopt_model(), home_of(world))


@pytest.mark.parametrize(("codec", "times"), [("threshold:0.9", 2), ("dense", 0)])
def test_what_is_lost_with_a_memory_is_said(codec, times, warnings):
    """By each trainer that has lost it."""
    over_threads(TWO, joined, options("async_ps", codec=codec))
    assert len(warnings) == times
    assert all("lost with its memory" in said for said in warnings)


# What is refused


def diverging(world, options, value):
    """One gradient is not finite, after some that are."""
    weights, count = np.zeros(PARAMETERS, np.float32), [0]

    def gradients(thread):
        count[0] += 1
        bad = np.zeros(PARAMETERS, np.float32)
        bad[17] = value if count[0] == 4 else 1.0
        return bad

    return on_trainers(
        world, options, weights, lambda own: with_pace(world, options, own, gradients, [9]), home_of(world)
    )


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("codec", CODECS)
def test_divergence_ends_the_run(codec, value):
    """A residual would hide it for ever."""
    chosen = options("async_ps", "fixed_rate", 1, codec=codec)
    with pytest.raises(TrainingError, match="not finite"):
        over_threads(ALONE, diverging, chosen, value)


def rounding(world, options, value):
    """A replica that is not finite after some rounds."""
    weights = replica(0)

    def work(synchronizers):
        for turn in range(5):
            weights[:] += 0.1 * replica(100 + turn + world.rank)
            weights[17] = value if turn == 4 and world.rank == 0 else weights[17]
            synchronizers[0].round()

    return on_trainers(world, options, weights, work, home_of(world))


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("codec", CODECS)
def test_divergence_ends_rounds_by_mirrors(codec, value):
    with pytest.raises(TrainingError, match="not finite"):
        over_threads(TWO, rounding, options("easgd", codec=codec), value)


@pytest.mark.parametrize("algorithm", [n for n, kind in sync.ALGORITHMS.items() if kind.no_codec])
def test_what_an_algorithm_cannot_carry_is_refused_with_the_reason(algorithm):
    pace = "fixed_rate" if sync.ALGORITHMS[algorithm].in_the_step else "shadow"
    options(algorithm, pace, codec="dense")
    with pytest.raises(SettingsError, match=f"algorithm = '{algorithm}' .*: set sync.codec = 'dense'"):
        options(algorithm, pace, codec="threshold:0.9")


def test_a_damaged_push_is_refused():
    payload = compress.make("threshold:0.9", compress.CodecOptions(), 50).take(replica(1)[:50].copy())
    whole = async_ps.message([payload], 1.0, Traffic())
    assert async_ps.read_push(whole, np.zeros(50, np.float32)) == 1.0
    for damaged in (whole[:-4], np.append(whole, np.zeros(4, np.uint8)), whole[: async_ps.HEAD + 4]):
        with pytest.raises(compress.PayloadError):
            async_ps.read_push(damaged, np.zeros(50, np.float32))
