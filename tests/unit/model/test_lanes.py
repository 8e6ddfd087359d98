"""Members of a group as threads of one process, against one trainer: each step by compiled code and mailboxes."""

from collections import defaultdict
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from drawn_networks import tagged
from hypothesis import given
from hypothesis import strategies as st
from members import OPTIONS, Group
from strength import one_at_a_time
from test_networks import example

from ssmpi.model import brgemm, instructions
from ssmpi.model import lane as lane_module
from ssmpi.model.edges import Receive, Send
from ssmpi.model.executor import PIECE
from ssmpi.model.lane import HomeModel
from ssmpi.model.member_program import transform
from ssmpi.model.network import DENSE, ROWS, Concat, Inputs, Linear, Network
from ssmpi.model.networks.zoo import network_of
from ssmpi.model.options import DCNv2Options, DeepFMOptions, DenseOptions, ModelOptions
from ssmpi.model.places import PLANS, places_of
from ssmpi.model.program import Program
from ssmpi.model.replica import Replica, dense_optimizer
from ssmpi.model.top_k import TopK
from ssmpi.runtime.mpi.mailbox import LATE
from ssmpi.runtime.topology import Topology
from ssmpi.trainer import precompile


class One:
    """A trainer with one thread."""

    def __init__(self, network, precision="fp32", options=OPTIONS["adagrad"]):
        self._replica = Replica(network, precision, seed=3)
        self._optimizer = dense_optimizer(options, self._replica)
        self.model = self._replica.thread_model()

    def train(self, batches):
        found = []
        for number, batch in enumerate(batches):
            found.append([values.copy() for values in self.model.forward_backward(*batch)])
            self._optimizer.step(self.model, 1 - number / 100)
        return found

    @property
    def vector(self):
        return self._replica.vector

    def state(self):
        return self._optimizer.state()


def network_named(name, inputs=None, wide=512, top_k=(), dropout=0.0):
    options = ModelOptions(
        name=name, bottom=(wide, 64, 16), top=(wide, 256, 1), top_k=top_k, dcn_v2=DCNv2Options(2, 0),
        deepfm=DeepFMOptions((wide, 300)), dropout=dropout,
    )  # fmt: skip
    return network_of(options, inputs or Inputs(13, 8, 16))


def places_by_plan(plan, network, group):
    return places_of(PLANS[plan](network, group), network, group)


def batches_of(network, sizes):
    return [(*example(network, size, seed), (1 << 31) - 40 + seed * 5_000) for seed, size in enumerate(sizes)]


def read_once(group):
    """Whether no value whose gradient matters is read on two members: then even sums are those of one trainer."""
    readers = defaultdict(set)
    for part in group.parts:
        for item in part.operators:
            if not isinstance(item, Send | Receive):
                for name in item.inputs:
                    readers[name] |= {part.member}
    return all(len(members) == 1 for name, members in readers.items() if name != DENSE)


def assert_same(lane, one, batches, within):
    """Over two parts of a run: logits, row gradients, parameters and optimizer state; to the bit if ``within`` is 0."""
    compare = partial(np.testing.assert_allclose, rtol=within, atol=within)
    for some in (batches[:3], batches[3:]):
        for ours, theirs in zip(lane.train(some), one.train(some), strict=True):
            for values, wanted in zip(ours, theirs, strict=True):
                compare(values, wanted)
    compare(lane.vector, one.vector)
    for name, state in one.state().items():
        compare(lane.state()[name], state)


@pytest.mark.parametrize("plan", ["data", "stages"])
@pytest.mark.parametrize(
    ("name", "group", "optimizer"),
    one_at_a_time(["dlrm", "dcn_v2", "deepfm"], [3, 2, 4], ["adagrad", "sgd", "adam"]),
)
def test_a_lane_is_one_trainer(name, group, optimizer, plan):
    """To the bit, with a last batch that is shorter; to rounding where a value is read on two members, and by MKL,
    which adds up by the addresses of values and weights.
    """
    network = network_named(name)
    lane = Group(network, places_by_plan(plan, network, group), group - 1, options=OPTIONS[optimizer])
    exact = read_once(lane)
    assert exact or (plan == "stages" and name != "dlrm")
    exact = exact and brgemm.kernels("fp32")
    batches = batches_of(network, [128, 128, 2048, 2048, 700, 77])
    assert_same(lane, One(network, options=OPTIONS[optimizer]), batches, 0 if exact else 1e-5)


@pytest.mark.skipif(not brgemm.kernels("fp32"), reason="MKL adds up by addresses")
@pytest.mark.parametrize("name", ["dlrm", "masknet", "gdcn", "finalnet"])
def test_a_lane_with_dropout_is_one_trainer(name):
    """To the bit: whoever drops knows the numbers of the examples, far beyond 31 bits."""
    network = network_named(name, dropout=0.3)
    lane = Group(network, places_of(["*: 0"], network, 1), 0)
    assert_same(lane, One(network), batches_of(network, [128, 700, 77, 5]), 0)
    lane = Group(network, places_of(["*: 1"], network, 2), 0)
    assert_same(lane, One(network), batches_of(network, [128, 700, 77, 5]), 0)


def test_all_kernels_of_lanes_are_loaded_before_the_first_step(monkeypatch):
    """Those of helpers too: otherwise the first batch waits until each of them has compiled its step."""
    network, names = network_named("dlrm", wide=64), ("_step_at_home", "_send_gradients", "_send_weights", "_help")
    group, called = Group(network, places_by_plan("data", network, 2)), set()

    def seen(kernel, *arguments):
        called.add(kernel.__name__)
        return kernel(*arguments)

    for name in names:
        monkeypatch.setattr(lane_module, name, partial(seen, getattr(lane_module, name)))
    config = SimpleNamespace(places=group.places, topology=Topology(2, group=2))
    precompile._compile_lanes(config, group.replicas[0], batches_of(network, [2])[0])
    assert called == set(names)


@pytest.mark.parametrize("member", range(3))
def test_a_member_loads_the_instructions_of_all_its_lanes_and_no_others(member, monkeypatch):
    """Of each home, which may send it something in another way than the others."""
    network = network_named("dlrm", wide=64, top_k=("top.0: 0.99",))
    functions_of, loaded = instructions.functions_of, set()
    places = places_of(["bottom.*: 0", "pairs: 1", "*: 2"], network, 3)

    def load(*arguments):
        loaded.add(functions_of(*arguments))
        return functions_of(*arguments)

    monkeypatch.setattr(instructions, "functions_of", load)
    config = SimpleNamespace(places=places, topology=Topology(3, group=3))
    precompile._compile_lanes(config, Group(network, places).replicas[member], batches_of(network, [2])[0])
    tables = [Program(transform(network, places, member, home)).table for home in range(3)]
    kernels = brgemm.kernels("fp32") or brgemm.NONE
    assert loaded == {functions_of(row, kernels) for table in tables for row in table}


TOP_K = ("bottom.0: 0.95", "bottom.2: 0.75", "top.2: 0.9")


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize(("group", "home"), [(2, 0), (3, 1)])
def test_a_lane_with_sparse_edges_is_one_trainer(group, home, precision):
    """To the bit, over edges with all three ways to write places; whichever of the two a TopK is with, or both."""
    if not brgemm.kernels(precision):
        pytest.skip("MKL adds up by addresses")
    network = network_named("dlrm", top_k=TOP_K)
    rules = ["bottom.0*: 1", "bottom.2*: 2" if group > 2 else "bottom.2*: 0", "bottom.4: 0", "pairs: 0", "top.0: 0",
             "top.2*: 1", "top.4: 0"]  # fmt: skip
    lane = Group(network, places_of(rules, network, group), home, precision)
    sparse = {edge.value: (edge.kept, edge.message) for edge in lane.parts[0].edges if edge.kept}
    assert sparse["bottom.0.top_k"] == (26, 4 * 26 + 52)
    assert sparse["top.2.top_k"] == (26, 4 * 26 + 26)
    batches = batches_of(network, [128, 128, 2048, 2048, 700, 77])
    assert read_once(lane)
    assert_same(lane, One(network, precision), batches, 0)


@pytest.mark.skipif(not brgemm.kernels("fp32"), reason="MKL adds up by addresses")
def test_a_share_of_0_is_no_top_k():
    """To the bit; its edges are dense, for they would be longer."""
    network = network_named("dlrm", top_k=("bottom.2: 0", "top.0: 0"))
    lane = Group(network, places_by_plan("stages", network, 2), 0)
    assert not any(edge.kept for edge in lane.parts[0].edges)
    assert_same(lane, One(network_named("dlrm")), batches_of(network, [128, 700, 77, 5]), 0)


def test_gradients_of_several_readers_meet_at_the_kept_places():
    """Of a sparse edge, of another, and of an operator beside the TopK: of a step of two pieces, to rounding."""
    layers = Linear("a", (DENSE,), 300, "relu"), TopK("few", ("a",), 0.9)
    read = [Linear(name, ("few",), 8) for name in ("b", "c", "d")]
    ends = Concat("all", ("b", "c", "d", ROWS)), Linear("logit", ("all",), 1)
    network = Network((*layers, *read, *ends), Inputs(13, 8, 16))
    lane = Group(network, places_of(["[ab]: 0", "few: 0", "c: 1", "d: 2", "*: 2"], network, 3), 2)
    assert [(edge.kept, edge.message) for edge in lane.parts[0].edges if edge.value == "few"] == [(30, 158)] * 2
    batch, one = batches_of(network, [PIECE + 1]), One(network)
    for values, wanted in zip(lane.train(batch)[0], one.train(batch)[0], strict=True):
        np.testing.assert_allclose(values, wanted, atol=1e-7)
    np.testing.assert_allclose(lane.vector, one.vector, rtol=1e-4, atol=1e-5)


@given(tagged(shares=()), st.data())
def test_any_network_in_any_places_is_one_trainer(tagged_network, data):
    """Two batches, the second in two pieces: logits, row gradients and, by the steps that they make, parameter
    gradients; and each edge carries the messages, and the bytes, that it says.
    """
    network, places = tagged_network
    options = DenseOptions(optimizer="sgd", rate=0.1)
    lane = Group(network, places, data.draw(st.integers(0, places.group - 1)), options=options)
    one, batches = One(network, options=options), batches_of(network, [7, PIECE + 1])
    for ours, theirs in zip(lane.train(batches), one.train(batches), strict=True):
        for values, wanted in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(values, wanted, rtol=1e-3, atol=2e-5)
    np.testing.assert_allclose(lane.vector, one.vector, rtol=1e-3, atol=2e-5)
    last, edges = PIECE // 2, lane.parts[0].edges
    for number, edge in enumerate(edges):
        assert lane.post.sent(number) == (3, last * edge.message)
        assert lane.post.sent(len(edges) + number) == ((3, last * edge.back) if edge.gradient else (0, 0))


def test_layers_in_bfloat16_are_those_that_are_wide():
    layers = Program(network_named("dlrm", wide=40), "bf16").layers
    assert [half for half, *_ in layers] == [False, True, False, True, True, False]


@pytest.mark.skipif(not brgemm.kernels("bf16"), reason="this processor has no bfloat16 instructions")
@pytest.mark.parametrize("plan", PLANS)
def test_a_lane_in_bfloat16_is_one_trainer(plan):
    network = network_named("dlrm")
    batches = batches_of(network, [128, 128, 2048, 700, 77])
    lane, one = Group(network, places_by_plan(plan, network, 2), precision="bf16"), One(network, precision="bf16")
    assert_same(lane, one, batches, 0)


def test_messages_in_bfloat16_are_half_as_long():
    """Values and gradients of tagged operators, and only they, lose bits on their way."""
    network = network_named("dlrm")
    plain = places_of(["bottom.*: 0", "top.*: 1"], network, 2)
    places = places_of(["bottom.*: 0 bf16", "pairs: home bf16", "top.*: 1 bf16"], network, 2)
    assert transform(network, places, 0, 0).moved(1, 0) == transform(network, plain, 0, 0).moved(1, 0) / 2
    batch = batches_of(network, [600])
    (rounded,), (whole,) = Group(network, places).train(batch), One(network).train(batch)
    for found, wanted in zip(rounded, whole, strict=True):
        assert 1e-5 < np.linalg.norm(found - wanted) / np.linalg.norm(wanted) < 0.05


@pytest.mark.parametrize("plan", PLANS)
def test_a_batch_of_nothing_moves_nothing(plan):
    network = network_named("dlrm", wide=256)
    lane = Group(network, places_by_plan(plan, network, 2), options=OPTIONS["sgd"])
    one = One(network, options=OPTIONS["sgd"])
    (*_, found), (*_, wanted) = lane.train(batches_of(network, [5, 0])), one.train(batches_of(network, [5, 0]))
    assert found[0].shape == wanted[0].shape == (0,)
    np.testing.assert_allclose(lane.vector, one.vector, atol=1e-6)


@pytest.mark.parametrize("plan", ["data", "stages"])
def test_a_helper_that_does_not_answer_ends_the_step(plan):
    """Within the limit, by the error that the channel makes of the mailbox and the code."""
    network = network_named("dlrm")
    group = Group(network, places_by_plan(plan, network, 2))
    part, channel = group.parts[0], replace(group.post.channel(0), limit=1_000_000)
    model = HomeModel(part, group.replicas[0].weights, "fp32", channel)
    with pytest.raises(AssertionError) as raised:
        model.forward_backward(*example(network, 5))
    _, number, code = raised.value.args[0]
    awaited = part.begin(1) + 2 if plan == "data" else [edge.value for edge in part.edges].index("top.4")
    assert (number, code) == (awaited, LATE)
