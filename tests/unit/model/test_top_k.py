"""``TopK``: its compiled and its torch form against a mask made by torch, and the setting that inserts it."""

import re

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from own_network import NAMED, write_own
from runs import train_over_threads, write_run_file
from test_model import autograd

from ssmpi.model import blas, brgemm, graph, program, step_args, top_k_kernels
from ssmpi.model.autograd_step import AutogradStep
from ssmpi.model.estimates import Estimates
from ssmpi.model.executor import PIECE, CompiledStep
from ssmpi.model.network import DENSE, ROWS, Concat, Inputs, Linear, Network
from ssmpi.model.networks.zoo import network_of
from ssmpi.model.options import ModelOptions
from ssmpi.model.parameters import by_name, initial_vector
from ssmpi.model.program import Program
from ssmpi.model.reference import output
from ssmpi.model.replica import Replica
from ssmpi.model.top_k import TopK, describe, with_top_k
from ssmpi.model.top_k_kernels import by_strongest, measure, strongest, threshold, where_large
from ssmpi.runtime.errors import SettingsError
from ssmpi.tools import score

NUMBERS = st.sampled_from([0.0, -0.0, 1.0, -1.0, 2.5, -3.5, 1e-45, 1e38, np.inf, -np.inf, np.nan, -np.nan])


def mask_of(x, kept):
    """bool (width,): plainly, the places of the largest values of x (width,)."""
    order = sorted(range(len(x)), key=lambda i: (not np.isnan(x[i]), 0.0 if np.isnan(x[i]) else -abs(float(x[i]))))
    mask = np.zeros(len(x), bool)
    mask[order[:kept]] = True
    return mask


@given(st.data(), st.sampled_from([1, 2, 7, 13, 64, 256, 257]), st.sampled_from(["0.0", "0.29", "0.5", "0.95", "0.98"]))
def test_both_forms_pass_the_strongest_values_and_their_gradients(data, width, share):
    """To the bit, of numbers that tie, zeros, infinities and NaNs; rows after the first begin at its threshold."""
    draw = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    x = draw.normal(size=(4, width)).astype(np.float32)
    special = np.array(data.draw(st.lists(NUMBERS, min_size=1, max_size=8)), np.float32)
    at = draw.random(x.shape) < data.draw(st.sampled_from([0.0, 0.1, 0.9, 1.0]))
    x[at] = special[draw.integers(len(special), size=at.sum())]
    by_out = draw.normal(size=x.shape).astype(np.float32)
    operator = TopK("t", ("x",), float(share))
    kept = operator.kept(width)
    mask = np.array([mask_of(row, kept) for row in x])

    out, places = np.full_like(x, 7.0), np.zeros((4, kept), np.int32)
    strongest(x.view(np.int32), kept, out.view(np.int32), places)
    np.testing.assert_array_equal(places, [np.flatnonzero(row) for row in mask])
    np.testing.assert_array_equal(out.view(np.int32), np.where(mask, x, np.float32(0.0)).view(np.int32))
    before = draw.normal(size=x.shape).astype(np.float32)
    for add, start in ((False, 0.0), (True, before)):
        by_x = before.copy()
        by_strongest(by_out, places, by_x, add)
        np.testing.assert_array_equal(by_x, start + np.where(mask, by_out, np.float32(0.0)))

    given = torch.from_numpy(x).requires_grad_()
    found = output(operator, {}, [given])
    found.backward(torch.from_numpy(by_out))
    np.testing.assert_array_equal(found.detach().numpy().view(np.int32), out.view(np.int32))
    np.testing.assert_array_equal(given.grad.numpy(), np.where(mask, by_out, 0.0))

    finite = torch.from_numpy(np.nan_to_num(x, nan=0.0, posinf=0.0, neginf=0.0)).requires_grad_()
    product = finite * torch.from_numpy(mask).detach()
    product.backward(torch.from_numpy(by_out))
    for row in np.flatnonzero(np.isfinite(x).all(axis=1)):  # as the paper's algorithm is written
        np.testing.assert_array_equal(product[row].detach().numpy(), out[row])
    np.testing.assert_array_equal(finite.grad.numpy(), given.grad.numpy())


INPUTS = Inputs(dense=5, tables=3, dim=4)
NARROW = (
    Linear("a", (DENSE,), 40, "relu"),
    Linear("b", ("a",), 33),
    Concat("all", ("b", "a", ROWS)),
    Linear("logit", ("all",), 1),
)


def whole_numbers(network, batch):
    """Weights and a batch whose products are exact in any precision, so that all agree on what is largest."""
    draw = np.random.default_rng(batch)
    vector = draw.integers(-2, 3, network.parameters).astype(np.float32)
    dense = draw.integers(-1, 2, (batch, network.inputs.dense)).astype(np.float32)
    rows = draw.integers(-2, 3, (batch, network.inputs.tables, network.rows.width)).astype(np.float32)
    return vector, dense, rows, (draw.random(batch) < 0.4).astype(np.float32)


def compiled_steps(network, vector):
    """The compiled step of both precisions, as far as this processor has them, each with its vector of gradients."""
    for precision in ("fp32", "bf16"):
        kernels = brgemm.kernels(precision)
        if kernels or precision == "fp32":
            gradients = np.zeros_like(vector)
            program = Program(network, precision)
            yield CompiledStep(program, vector, gradients, blas.sgemm(), kernels or brgemm.NONE), gradients


@pytest.mark.parametrize("batch", [1, PIECE + 1])
def test_a_network_with_it_has_the_gradients_of_autograd(batch):
    """With readers beside it, whose gradients add up; in both precisions, and by torch."""
    network = with_top_k(Network(NARROW, INPUTS), ["a: 0.9", "b: 0.5"])
    beside = (*network.operators[:-2], Concat("all", ("b.top_k", "b", "a", ROWS)), network.operators[-1])
    network = Network(beside, INPUTS)
    vector, *arrays = whole_numbers(network, batch)
    logits, by_rows, by_vector = autograd(network, vector, *arrays)
    plain = autograd(Network(NARROW, INPUTS), vector[: Network(NARROW, INPUTS).parameters], *arrays)
    assert not np.array_equal(logits, plain[0])
    by_torch = np.zeros_like(vector)
    torch_step = AutogradStep(network, *(by_name(network.layout, each) for each in (vector, by_torch)))
    for step, gradients in (*compiled_steps(network, vector), (torch_step, by_torch)):
        found = step(*arrays)
        if isinstance(step, CompiledStep):
            step.finish()
            np.testing.assert_array_equal(step.score(*arrays[:2]), logits)
            step(*arrays)
            step.finish()
        np.testing.assert_array_equal(found[0], logits)
        for value, wanted in ((found[1], by_rows), (gradients, by_vector)):
            np.testing.assert_allclose(value, wanted, rtol=1e-2, atol=1e-2 * np.abs(wanted).max())


def test_a_share_of_0_changes_no_bit():
    network, vector = Network(NARROW, INPUTS), initial_vector(Network(NARROW, INPUTS), 1, None)
    draw = np.random.default_rng(1)
    dense, rows = draw.normal(size=(70, 5)).astype(np.float32), draw.normal(size=(70, 3, 4)).astype(np.float32)
    found = []
    for each in (network, with_top_k(network, ["a: 0", "b: 0.0"])):
        for step, gradients in compiled_steps(each, vector):
            found.append([*map(np.copy, step(dense, rows, np.ones(70, np.float32)))])
            step.finish()
            found[-1].append(gradients)
    for with_it, without in zip(found[len(found) // 2 :], found, strict=False):
        for value, wanted in zip(with_it, without, strict=True):
            np.testing.assert_array_equal(value, wanted)


def test_it_is_inserted_saved_and_described():
    network = network_of(ModelOptions(bottom=(100, 4), top=(16, 8, 1), top_k=("bottom.0: 0.29", "pairs: 0.5")), INPUTS)
    before = network_of(ModelOptions(bottom=(100, 4), top=(16, 8, 1)), INPUTS)
    assert network.layout == before.layout
    inputs = {operator.name: operator.inputs for operator in network.operators}
    assert inputs["bottom.0.top_k"] == ("bottom.0",)
    assert inputs["bottom.2"] == ("bottom.0.top_k",)
    assert inputs["top.0"] == ("pairs.top_k",)
    assert graph.from_json(graph.as_json(network)) == network
    assert graph.difference(graph.as_json(before), graph.as_json(network))
    assert describe(network_of(ModelOptions(top_k=("bottom.2: 0.95 laplace",)), Inputs(13, 26, 16))) == [
        "bottom.2.top_k keeps about 12.8 of 256 values, by a threshold: how many varies, so edges of a group send all"
    ]
    assert describe(network) == [
        "bottom.0.top_k keeps 71 of 100 values",  # a float's 100 x 0.29 is less than 29
        "pairs.top_k keeps 5 of 10 values (pairs has no ReLU: large negative values pass, too)",
    ]


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["bottom.2"], "'bottom.2' is not of the form 'OPERATOR: SHARE' or 'OPERATOR: SHARE laplace'"),
        (["bottom.2: laplace"], "'bottom.2: laplace' is not of the form"),
        (["bottom.2: most"], "'bottom.2: most' is not of the form"),
        (["bottom.2: 1"], "'bottom.2: 1': the share is at least 0 and less than 1: 0.95 drops 95 % of the values"),
        (["bottom.2: -0.1"], "the share is at least 0"),
        (["bottom.2: nan"], "the share is at least 0"),
        (["botom.2: 0.5"], "the network has no operator 'botom.2'; did you mean 'bottom.2'?"),
        (["top.4: 0.5"], "'top.4: 0.5': the output of 'top.4' is the logit: name an operator before it"),
        (["top.0: 0.5", "top.0: 0.9"], "'top.0: 0.9': 'top.0' is named twice: remove one of them"),
    ],
)
def test_bad_settings_are_refused(texts, message):
    with pytest.raises(SettingsError, match=re.escape(message)) as caught:
        network_of(ModelOptions(top_k=tuple(texts)), Inputs(13, 26, 16))
    assert str(caught.value).startswith("model.top_k: ")


def test_an_operator_of_ones_own_checks_its_share():
    with pytest.raises(SettingsError, match=r"operator 't' \(TopK\): share is at least 0 and less than 1, got 95"):
        Network((TopK("t", (ROWS,), 95.0), Linear("logit", ("t",), 1)), INPUTS)


LAPLACE = with_top_k(Network(NARROW, INPUTS), ["a: 0.9 laplace", "b: 0.5 laplace"])


def formula(nonzero, size, share):
    """The threshold, as the issue of it has it: of the positive values after a ReLU, of all sizes without one."""
    return size / nonzero * np.log(nonzero / (1 - share)) if nonzero > 1 - share else 0.0


@pytest.mark.parametrize(
    ("draw", "found"),
    [
        (lambda draw: np.maximum(draw.laplace(size=400_000), 0), 0.050),
        (lambda draw: np.maximum(draw.normal(size=400_000), 0), 0.033),
        (lambda draw: draw.laplace(size=400_000), 0.050),
        (lambda draw: np.maximum(draw.normal(size=400_000) - 2, 0), 0.023),  # fewer are positive than may pass
    ],
)
def test_a_threshold_lets_about_the_wanted_share_pass(draw, found):
    x = draw(np.random.default_rng(1)).astype(np.float32)
    own = Estimates(with_top_k(Network(NARROW, INPUTS), ["a: 0.95 laplace"])).values[0]
    measure(x, own)
    out = np.empty_like(x)
    where_large(x, threshold(own), x, out, False)
    assert np.mean(out != 0) == pytest.approx(found, abs=0.001)
    wanted = formula(np.mean(x != 0), np.abs(x.astype(np.float64)).mean(), 0.95)
    assert threshold(own) == pytest.approx(wanted, rel=1e-5)


def test_means_are_of_all_batches_and_of_all_trainers():
    draw, network = np.random.default_rng(1), with_top_k(Network(NARROW, INPUTS), ["a: 0.95 laplace"])
    each, common = [Estimates(network, learning=True) for _ in range(3)], Estimates(network)
    batches = np.maximum(draw.normal(size=(5, 640)), 0).astype(np.float32)
    for number, batch in enumerate(batches):
        measure(batch, each[number // 3].values[0])  # the third trainer has none
    common.take_mean([own.values for own in each])
    np.testing.assert_allclose(common.values[0, :3], [5, (batches != 0).mean(), batches.mean()], rtol=1e-6)
    for number in range(1000):  # for all its memory
        measure(batches[number % 5], each[2].values[0])
    assert each[2].values[0, 0] == 1000  # from then on a batch counts a thousandth
    common.take_mean([Estimates(network).values, each[2].values])
    np.testing.assert_array_equal(common.values, each[2].values)  # which nobody else has measured


def test_gradients_pass_exactly_where_values_did():
    """Also of values at the threshold, and right beside it."""
    estimates = Estimates(with_top_k(Network(NARROW, INPUTS), ["a: 0.95 laplace"])).values
    estimates[0, :3] = 1, 1, 0.5
    least = np.float32(threshold(estimates[0]))
    near = [np.nextafter(least, np.float32(0)), least, np.nextafter(least, np.float32(9)), least * 1.00005]
    x = np.array([*near, *(-each for each in near)], np.float32)
    row, args = np.zeros(program.COLUMNS, np.int64), np.zeros(step_args.ESTIMATES + 2, np.int64)
    row[[program.INPUTS, program.OUT, program.DETAIL]] = x.size, x.size, 2 * x.size
    row[program.FLAGS], args[step_args.EXAMPLES] = program.BY_A, 1
    values, by_values = np.array([*x, *x, 0], np.float32), np.ones(2 * x.size, np.float32)
    places = {step_args.VALUES: values, step_args.BY_VALUES: by_values, step_args.ESTIMATES: estimates}
    for place, array in places.items():
        args[[place, place + 1]] = array.ctypes.data, array.size
    top_k_kernels.threshold_forward(args, row)
    top_k_kernels.threshold_backward(args, row)
    out, by_x = values[x.size : -1], by_values[: x.size]
    np.testing.assert_array_equal(by_x, [0, 1, 1, 1] * 2)
    np.testing.assert_array_equal(out, x * by_x)


@pytest.mark.parametrize("batch", [1, 70])
def test_training_by_thresholds_has_the_gradients_of_autograd(batch):
    """The threshold is that of what has been measured, with this batch; torch's operators are given the same."""
    vector, *arrays = whole_numbers(LAPLACE, batch)
    parameters = {name: torch.from_numpy(value) for name, value in by_name(LAPLACE.layout, vector)}
    leaf = torch.from_numpy(arrays[1]).requires_grad_()
    for value in parameters.values():
        value.requires_grad_()
    x, taus = {DENSE: torch.from_numpy(arrays[0])}, []
    for name, share in (("a", 0.9), ("b", 0.5)):
        source = DENSE if name == "a" else "a"
        x[name] = x[source] @ parameters[f"{name}.weight"].T + parameters[f"{name}.bias"]
        x[name] = x[name].relu() if name == "a" else x[name]
        taus.append(formula((x[name] != 0).double().mean().item(), x[name].abs().double().mean().item(), share))
        x[name] = x[name] * (x[name].abs() >= taus[-1]).detach()
    logits = torch.cat([x["b"], x["a"], leaf.flatten(1)], dim=1) @ parameters["logit.weight"].T
    logits = (logits + parameters["logit.bias"]).squeeze(1)
    torch.nn.functional.binary_cross_entropy_with_logits(logits, torch.from_numpy(arrays[2])).backward()
    gradients, estimates = np.zeros_like(vector), Estimates(LAPLACE, learning=True)
    step = CompiledStep(Program(LAPLACE, "fp32", estimates), vector, gradients, blas.sgemm())
    found = step(*arrays)
    step.finish()
    np.testing.assert_array_equal(found[0], logits.detach().numpy())
    assert [threshold(row) for row in estimates.values] == pytest.approx(taus)
    expected = np.concatenate([value.grad.numpy().ravel() for value in parameters.values()])
    for value, wanted in ((found[1], leaf.grad.numpy()), (gradients, expected)):
        np.testing.assert_allclose(value, wanted, rtol=1e-2, atol=1e-2 * np.abs(wanted).max())


def test_a_model_is_scored_by_the_thresholds_of_all_trainers():
    network = with_top_k(Network(NARROW, INPUTS), ["a: 0.9 laplace"])
    vector, dense, rows, labels = whole_numbers(network, 70)
    replica, plain = Replica(network, "fp32", 1), Replica(Network(NARROW, INPUTS), "fp32", 1)
    replica.vector[:] = plain.vector[:] = vector
    first = replica.scoring_model().score(dense, rows)
    np.testing.assert_array_equal(first, plain.thread_model().score(dense, rows))  # nothing measured: all values pass
    logits, _ = replica.thread_model().forward_backward(dense, rows, labels)
    replica.estimates.take_mean([replica.measured.values])
    before = replica.measured.values.copy()
    scored = replica.scoring_model().score(dense, rows)
    np.testing.assert_array_equal(scored, logits)
    assert not np.array_equal(scored, first)
    np.testing.assert_array_equal(replica.measured.values, before)  # scoring measures nothing


CUBE = """
from dataclasses import dataclass
from ssmpi.model.network import ROWS, Form, Linear, Network, Operator

@dataclass(frozen=True)
class Cube(Operator):
    def form(self, width):
        return Form(width)

    def by_torch(self, parameters, x):
        return x**3

def network(inputs):
    return Network((Cube("cube", (ROWS,)), Linear("logit", ("cube",), 1)), inputs)
"""


def test_custom_operators_refuse_thresholds(tmp_path, small_data):
    """Torch computes them."""
    write_own(tmp_path, CUBE)
    config = write_run_file(tmp_path, small_data, NAMED, "model.top_k=['cube: 0.5 laplace']")
    with pytest.raises(SettingsError, match=r"the thresholds of cube.top_k are known to compiled code only"):
        config.network  # noqa: B018 - composed when it is asked for


def test_members_of_a_group_train_and_score_by_thresholds(tmp_path, small_data, alone, capsys):
    """One of them measures; both score; the model has the thresholds, by which it is scored later."""
    group = ("topology.trainers=2", "topology.group=2", "hierarchy.plan=stages", "topology.embedding_ps=1")
    run = train_over_threads(tmp_path, small_data, *group, "model.top_k=['bottom.0: 0.75 laplace']")
    assert run.dense()["bottom.0.top_k.sizes"][0] > 0
    assert score.evaluate(run.folder, "test", None) == 0
    assert f"NE {run.quality('test')['ne']:.5f}" in capsys.readouterr().out
