"""Products, norms, activations and dropout against torch's own modules; the newer networks against their papers."""

import numpy as np
import pytest
import torch
from paper_networks import NETWORKS, PAPERS
from test_networks import example
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits

from ssmpi.model import blas, kernels
from ssmpi.model.elementwise_kernels import drop
from ssmpi.model.executor import PIECE, CompiledStep
from ssmpi.model.network import ROWS, Activation, Dropout, Inputs, LayerNorm, Linear, Network, Product, mlp
from ssmpi.model.networks.zoo import NETWORKS as NAMES
from ssmpi.model.networks.zoo import network_of
from ssmpi.model.options import ModelOptions
from ssmpi.model.parameters import by_name
from ssmpi.model.program import Program
from ssmpi.model.replica import Replica

INPUTS = Inputs(dense=5, tables=3, dim=4)


def by_torch(network, weights, batch, forward):
    """Logits, row gradients and gradients by parameter name of ``forward(parameters, dense, rows)``, in float64."""
    leaves = {name: torch.tensor(values, dtype=float, requires_grad=True) for name, values in weights}
    dense, rows, labels = (torch.tensor(values, dtype=float, requires_grad=True) for values in batch)
    logits = forward(leaves, dense, rows).squeeze(1)
    binary_cross_entropy_with_logits(logits, labels.detach()).backward()
    return logits.detach(), rows.grad, {name: leaf.grad for name, leaf in leaves.items()}


def assert_near(network, forward, batch, within=1e-5):
    """The compiled step, by oneDNN if this processor takes it, and by BLAS; relative to the largest value."""
    model = Replica(network, "fp32", seed=3).thread_model()
    model.weights += np.random.default_rng(1).normal(0, 0.1, model.weights.shape).astype(np.float32)
    expected = by_torch(network, by_name(network.layout, model.weights), batch, forward)
    gradients = np.zeros_like(model.weights)
    blas_step = CompiledStep(Program(network), model.weights, gradients, blas.sgemm())
    for step, found in ((model.forward_backward, lambda: model.gradients), (blas_step, lambda: gradients)):
        logits, by_rows = step(*batch)
        pairs = [(logits, expected[0]), (by_rows, expected[1])]
        pairs += [(values, expected[2][name]) for name, values in by_name(network.layout, found())]
        for ours, theirs in pairs:
            np.testing.assert_allclose(ours, theirs, rtol=0, atol=within * max(1.0, theirs.abs().max().item()))


def behind_a_layer(operator):
    """The logit of what the operator makes of 12 outputs of a layer."""
    layers = Linear("x", (ROWS,), 12), operator
    return Network((*layers, Linear("logit", (operator.name,), 1)), INPUTS)


MODULES = {
    "relu": nn.ReLU(),
    "sigmoid": nn.Sigmoid(),
    "gelu": nn.GELU(),
    "silu": nn.SiLU(),
    "tanh": nn.Tanh(),
    "prelu": nn.PReLU(12, dtype=float),
}


@pytest.mark.parametrize("name", MODULES)
@pytest.mark.parametrize("fused", [False, True])
def test_activations_are_torchs(name, fused):
    """As an operator of their own, and of a linear layer; some values far out."""
    alone, within = behind_a_layer(Activation("a", ("x",), name)), [Linear("a", (ROWS,), 12, name)]
    network = Network((*within, Linear("logit", ("a",), 1)), INPUTS) if fused else alone

    def forward(p, dense, rows):
        first = "a" if fused else "x"
        x = rows.flatten(1) @ p[f"{first}.weight"].T + p[f"{first}.bias"]
        slope = {"weight": p["a.slope"]} if name == "prelu" else {}
        return torch.func.functional_call(MODULES[name], slope, x) @ p["logit.weight"].T + p["logit.bias"]

    dense, rows, labels = example(network, PIECE + 9)
    rows[::3] *= 10
    assert_near(network, forward, (dense, rows, labels))


def test_the_fast_sigmoid_is_near_the_exact_one_wherever_a_value_lies():
    """Within float32's rounding, at infinity too; a value gives the same bits alone and among others."""
    values = np.append(np.linspace(-120, 120, 100_003), [0.0, 1e30, -1e30, np.inf, -np.inf]).astype(np.float32)
    found, some = values.copy(), values[::1000].copy()
    kernels.sigmoid(found)
    np.testing.assert_allclose(found, torch.sigmoid(torch.from_numpy(values).double()), rtol=0, atol=1e-7)
    for k in range(len(some)):
        kernels.sigmoid(some[k : k + 1])
    np.testing.assert_array_equal(some, found[::1000])
    kernels.sigmoid(undefined := np.full(17, np.nan, np.float32))
    assert np.isnan(undefined).all()


@pytest.mark.parametrize("dim", [0, 4])
def test_layer_norm_is_torchs(dim):
    """Of the whole vector, and of each vector of some floats."""

    def forward(p, dense, rows):
        x = rows.flatten(1) @ p["x.weight"].T + p["x.bias"]
        norms = [nn.LayerNorm(dim or 12, dtype=float) for _ in range(12 // (dim or 12))]
        parts = zip(
            norms, x.chunk(len(norms), 1), p["a.scale"].chunk(len(norms)), p["a.shift"].chunk(len(norms)), strict=True
        )
        found = [
            torch.func.functional_call(norm, {"weight": scale, "bias": shift}, part)
            for norm, part, scale, shift in parts
        ]
        return torch.cat(found, dim=1) @ p["logit.weight"].T + p["logit.bias"]

    network = behind_a_layer(LayerNorm("a", ("x",), dim))
    assert_near(network, forward, example(network, PIECE + 9))


@pytest.mark.parametrize("inputs", [(ROWS, "x"), ("x", "x"), (ROWS, "x", ROWS, "x")])
def test_a_product_has_the_gradients_of_all_its_factors(inputs):
    """Also where a factor is 0, and where one is read twice."""

    def forward(p, dense, rows):
        values = {ROWS: rows.flatten(1), "x": rows.flatten(1) @ p["x.weight"].T + p["x.bias"]}
        product = torch.stack([values[name] for name in inputs]).prod(dim=0)
        return product @ p["logit.weight"].T + p["logit.bias"]

    network = behind_a_layer(Product("a", inputs))
    dense, rows, labels = example(network, PIECE + 9)
    rows[::2, 0] = 0.0
    assert_near(network, forward, (dense, rows, labels))


def test_scales_begin_at_1_and_slopes_as_torchs():
    network = Network((*behind_a_layer(LayerNorm("a", ("x",))).operators[:2], Linear("logit", ("a",), 1)), INPUTS)
    found = dict(by_name(network.layout, Replica(network, "fp32", seed=3).vector))
    assert (found["a.scale"] == 1).all()
    assert (found["a.shift"] == 0).all()
    network = behind_a_layer(Activation("a", ("x",), "prelu"))
    slopes = dict(by_name(network.layout, Replica(network, "fp32", seed=3).vector))["a.slope"]
    np.testing.assert_array_equal(slopes, nn.PReLU(12).weight.detach())


@pytest.mark.parametrize("name", PAPERS)
@pytest.mark.parametrize("inputs", [INPUTS, Inputs(0, 3, 4)])
def test_networks_are_the_papers(name, inputs):
    network = network_of(NETWORKS[name], inputs)
    vector = network.rows.vector

    def forward(p, dense, rows):
        return PAPERS[name](p, dense, list(rows[:, :, :vector].unbind(1)), list(rows[:, :, vector:].unbind(1)))

    assert_near(network, forward, example(network, 40))


def test_every_built_in_network_is_tried_small():
    assert {options.name for options in NETWORKS.values()} == set(NAMES)


def dropped(rate, rows=4_000, first=0, operator=0):
    out = np.ones((rows, 50), np.float32)
    drop(out, first, operator, int(rate * 2**24), out, False)
    return out


@pytest.mark.parametrize("rate", [0.0, 0.1, 0.5, 0.9])
def test_dropout_drops_its_share_of_every_column_and_keeps_the_expectation(rate):
    """Of 200,000 values; neighbours, examples and operators have nothing to do with each other."""
    found = dropped(rate)
    np.testing.assert_allclose(np.unique(found), [0.0, 1 / (1 - rate)] if rate else [1.0], rtol=1e-6)
    assert abs((found == 0).mean() - rate) < 0.005
    assert np.abs((found == 0).mean(axis=0) - rate).max() < 0.04
    assert np.abs((found == 0).mean(axis=1) - rate).max() < 0.36
    for other in (found[1:], found[:, 1:], dropped(rate, operator=1)) if rate else ():
        pair = found[: other.shape[0], : other.shape[1]].ravel(), other.ravel()
        assert abs(np.corrcoef(*pair)[0, 1]) < 0.01


def test_what_is_dropped_depends_on_the_examples_number():
    """Not on its place in a batch."""
    np.testing.assert_array_equal(dropped(0.5, 100)[30:], dropped(0.5, 70, first=30))
    assert (dropped(0.5) != dropped(0.5, first=4_000)).any()


def with_dropout(rate):
    hidden = mlp("deep", ROWS, (24, 12, 1), last="none", dropout=rate)
    return Network(tuple(hidden), INPUTS)


def test_scores_know_nothing_of_dropout():
    """And at a rate of 0 there is no operator."""
    plain, network = with_dropout(0.0), with_dropout(0.5)
    assert [type(each).__name__ for each in network.operators] == ["Linear", "Dropout", "Linear", "Dropout", "Linear"]
    assert not any(isinstance(operator, Dropout) for operator in plain.operators)
    batch = example(network, PIECE + 9)
    models = [Replica(each, "fp32", seed=3).thread_model() for each in (plain, network)]
    expected, found = (model.score(*batch[:2]) for model in models)
    np.testing.assert_array_equal(found, expected)
    assert np.abs(models[1].forward_backward(*batch, 7)[0] - expected).max() > 0.1
    np.testing.assert_array_equal(models[1].score(*batch[:2]), expected)


def test_a_batch_of_several_pieces_drops_what_its_parts_drop():
    model, batch = Replica(with_dropout(0.5), "fp32", seed=3).thread_model(), example(with_dropout(0.5), 2 * PIECE + 9)
    whole = model.forward_backward(*batch, 5)[0].copy()
    parts = [model.forward_backward(*(each[k : k + 100] for each in batch), 5 + k)[0].copy() for k in (0, 600, 1_000)]
    for k, found in zip((0, 600, 1_000), parts, strict=True):
        np.testing.assert_allclose(found, whole[k : k + 100], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "logistic"])
def test_dropout_is_behind_each_hidden_layer_but_the_bottom_ones(name):
    """And changes neither parameters nor their initial values."""
    plain, network = (network_of(ModelOptions(name, dropout=rate), Inputs(13, 26, 16)) for rate in (0.0, 0.2))
    assert network.layout == plain.layout
    dropouts = [operator for operator in network.operators if isinstance(operator, Dropout)]
    assert {operator.rate for operator in dropouts} == {0.2}
    hidden = {"dlrm": 2, "dcn_v2": 2, "finalmlp": 4, "finalnet": 4}
    assert len(dropouts) == hidden.get(name, 3)
