"""A checkpoint of groups holds parameters by their names in the network, whoever owned which: any others resume it."""

from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from owners import BY_LAYER, IN_TURN, NETWORK, WHOLE
from ranks import over_threads
from sync_bodies import WAITING, on_trainers, options

from ssmpi.model.member_program import MemberProgram
from ssmpi.model.options import DenseOptions
from ssmpi.model.replica import Replica, dense_optimizer
from ssmpi.runtime.errors import DataError
from ssmpi.runtime.topology import Topology
from ssmpi.state.checkpoint import dense_vectors, files
from ssmpi.state.checkpoint.trainer_state import Checkpoint, LiveState, restore
from ssmpi.trainer.snapshot import CommonModel

ADAGRAD = DenseOptions(optimizer="adagrad", rate=0.1)
DENSE = {"async_ps": ADAGRAD, "bmuf": DenseOptions(optimizer="adam", rate=0.1)}
MEANS = "exp_avg", "exp_avg_sq"  # Adam's
BMUF, ENCODED = options("bmuf"), options("async_ps", codec="threshold:0.5")
PAIRS, SINGLES, ONE_PAIR = Topology(4, group=2), Topology(2, 2), Topology(2, group=2)


def flat(name, replica=0):
    """A vector of the whole network, the same for the same name and replica."""
    seed = [ord(letter) for letter in name]
    return np.abs(np.random.default_rng([replica, *seed]).normal(size=NETWORK.parameters)).astype(np.float32)


def with_state(world, options, owners, work):
    """``work(live, owned, replica)`` on each trainer, with a state whose arrays are all its own."""
    replica, member = world.topology.place_of(world.index)
    owned = owners[member] if world.role == "trainer" else WHOLE
    mine = Replica(NETWORK, "fp32", 1, part=MemberProgram(network=NETWORK, operators=NETWORK.operators, owned=owned))
    optimizer = dense_optimizer(DENSE[options.algorithm], mine)
    rows = [SimpleNamespace(values=None) for _ in range(world.topology.threads)]

    def live(synchronizers):
        return work(LiveState(owned, optimizer.state(), synchronizers[0], rows, []), owned, replica)

    return on_trainers(world, options, mine.vector, live, dense=ADAGRAD)


def save(world, options, owners, folder):
    """A body: write what a trainer writes."""

    def work(live, owned, replica):
        live.synchronizer.weights[:] = owned.of(flat("replica", replica))
        for name, values in live.optimizer.items():
            values[:] = 7 + 2 * replica if name == "step" else owned.of(flat(name, replica))
        live.prefetched[0].values, live.losses[:] = np.full((2, 3), world.rank, np.float32), [0.5 * world.rank]
        for name, values in live.synchronizer.state().items():
            if options.algorithm == "bmuf":
                values[:] = owned.of(flat("global" if name == "reference" else name))  # the same without Nesterov
        if options.algorithm == "async_ps":
            live.synchronizer.resume({"center": owned.of(flat("center"))})
        for thread, (residual, codec) in live.synchronizer.context.local.unsent.items():
            residual[:], codec[:] = owned.of(flat(f"residual {thread}", replica)), 1 + world.rank
        written = [(name, values, {}) for name, values in live.arrays().items()]
        files.write(folder / f"trainer-{world.rank:04}.h5", written)

    return with_state(world, options, owners, work)


def resume(world, options, owners, folder, topology):
    """A body: restore what was saved; all that a trainer then has."""
    checkpoint = Checkpoint(folder, {"topology": asdict(topology), "algorithm": options.algorithm})

    def work(live, owned, replica):
        live.synchronizer.weights[:] = owned.of(flat("model"))
        restore(live, checkpoint, world, options.algorithm, WAITING)
        found = {"replica": live.synchronizer.weights, **live.optimizer, **live.synchronizer.state()}
        return owned, replica, found, live.prefetched[0].values, live.losses

    return with_state(world, options, owners, work)


def resumed(folder, options, before, after, saved_by=PAIRS, topology=PAIRS):
    """What each trainer of ``topology`` with owners ``after`` resumes with."""
    over_threads(saved_by, save, options, before, folder)
    return over_threads(topology, resume, options, after, folder, saved_by)[: topology.trainers]


GROUPS = {"layers": BY_LAYER, "turns": IN_TURN, "whole": (WHOLE,)}


@pytest.mark.parametrize("after", GROUPS)
@pytest.mark.parametrize("before", GROUPS)
def test_as_many_replicas_resume_exactly_whoever_holds_them(tmp_path, before, after):
    saved_by, topology = (SINGLES if each == "whole" else PAIRS for each in (before, after))
    found = resumed(tmp_path, BMUF, GROUPS[before], GROUPS[after], saved_by, topology)
    for rank, (owned, replica, arrays, rows, losses) in enumerate(found):
        np.testing.assert_array_equal(arrays["replica"], owned.of(flat("replica", replica)))
        for name in MEANS:
            np.testing.assert_array_equal(arrays[name], owned.of(flat(name, replica)))
        assert arrays["step"] == 7 + 2 * replica
        for name in ("global", "delta"):
            np.testing.assert_array_equal(arrays[name], owned.of(flat(name)))
        same = saved_by == topology
        assert losses == ([0.5 * rank] if same else [])
        assert (rows is not None) == same
        assert not same or (rows == rank).all()


def test_other_numbers_of_replicas_begin_with_the_model(tmp_path):
    """And with the mean of the optimizers' states."""
    found = resumed(tmp_path, BMUF, IN_TURN, BY_LAYER, topology=ONE_PAIR)
    means = {name: (flat(name, 0).astype(float) + flat(name, 1)) / 2 for name in MEANS}
    for owned, _, arrays, rows, losses in found:
        for name, mean in means.items():
            np.testing.assert_array_equal(arrays[name], owned.of(mean.astype(np.float32)))
        assert arrays["step"] == 8
        np.testing.assert_array_equal(arrays["global"], owned.of(flat("global")))
        assert rows is None
        assert losses == []


@pytest.mark.parametrize("after", ["layers", "turns"])
def test_what_was_not_pushed_goes_to_its_owners(tmp_path, after):
    """A codec's thresholds only where the same ones own the same."""
    before, topology = Topology(4, 1, 1, 1, group=2), Topology(4, 1, 1, 1, group=2)
    found = resumed(tmp_path, ENCODED, BY_LAYER, GROUPS[after], before, topology)
    for rank, (owned, replica, arrays, *_) in enumerate(found):
        for lane in range(2):
            own = f"trainer {replica} of 2"
            np.testing.assert_array_equal(arrays[f"{own}/residual {lane}"], owned.of(flat(f"residual {lane}", replica)))
            assert bool((arrays[f"{own}/codec {lane}"] == 1 + rank).all()) == (after == "layers")
        if replica == 0:
            np.testing.assert_array_equal(arrays["center"], owned.of(flat("center")))


def test_a_parameter_whose_rows_several_members_saved_is_put_together():
    """As members of a group could until 0.2.0."""
    vector, name = flat("replica"), "top.0.weight"
    first, second = (dense_vectors.split({"replica": owned.of(vector)}, owned) for owned in BY_LAYER)
    values = second[f"replica/{name}"]
    first |= {f"replica/{name}": values[2:], f"rows/{name}": np.array([2, len(values)])}
    second |= {f"replica/{name}": values[:2], f"rows/{name}": np.array([0, 2])}
    path = Path("trainer-0000.h5")
    np.testing.assert_array_equal(dense_vectors.join([first, second], WHOLE, path)["replica"], vector)
    for lost in (
        {f"replica/{name}": values[2:3], f"rows/{name}": np.array([2, 3])},
        {f"rows/{name}": np.array([3, 9])},
    ):
        with pytest.raises(DataError, match=rf"^trainer-0000\.h5: array 'replica/{name}' has shape .*, expected"):
            dense_vectors.join([first | lost, second], WHOLE, path)


def test_a_parameter_that_no_member_saved_is_named(tmp_path):
    over_threads(PAIRS, save, BMUF, BY_LAYER, tmp_path)
    (tmp_path / "trainer-0001.h5").write_bytes((tmp_path / "trainer-0000.h5").read_bytes())
    checkpoint = Checkpoint(tmp_path, {"topology": asdict(PAIRS), "algorithm": "bmuf"})
    with pytest.raises(DataError, match=r"trainer-0000\.h5 has no array '.*/top\.0\.weight'"):
        checkpoint.arrays(0, WHOLE)


def test_the_file_of_a_trainer_alone_has_the_names_that_it_had(tmp_path):
    over_threads(SINGLES, save, BMUF, (WHOLE,), tmp_path)
    vectors = ("replica", "dense/exp_avg", "dense/exp_avg_sq", "sync/global", "sync/delta", "sync/reference")
    names = {f"{vector}/{name}" for vector in vectors for name, _ in NETWORK.layout}
    assert set(files.read(tmp_path / "trainer-0000.h5")) == names | {"dense/step", "held/0", "losses"}


def gather(world, owners):
    """A body: the common model on every trainer."""
    _, member = world.topology.place_of(world.index)
    owned = owners[member] if world.role == "trainer" else WHOLE
    weights = owned.of(-flat("zero") * (flat("signs") > 1))  # with zeros that have a sign

    def work(synchronizers):
        part = MemberProgram(network=NETWORK, operators=NETWORK.operators, owned=owned)
        replica = Replica(NETWORK, "fp32", 1, part=part)
        model = CommonModel(synchronizers[0], replica, world, WAITING)
        return model.weights(), model.gathered(owned.of(flat("replica", world.rank // 2)))

    return on_trainers(world, options("none"), weights, work)


@pytest.mark.parametrize("owners", [BY_LAYER, IN_TURN], ids=["layers", "turns"])
def test_every_member_gets_the_whole_model_to_the_bit(owners):
    expected = -flat("zero") * (flat("signs") > 1)
    for rank, (model, replica) in enumerate(over_threads(PAIRS, gather, owners)[:4]):
        np.testing.assert_array_equal(model.view(np.uint32), expected.view(np.uint32))
        np.testing.assert_array_equal(replica, flat("replica", rank // 2))
