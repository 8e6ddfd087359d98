"""A network's ONNX graph, as onnxruntime computes it, is torch's forward pass."""

import sys
from dataclasses import dataclass, replace

import numpy as np
import onnxruntime
import paper_networks
import pytest
import torch

from ssmpi.model import field_operators, operators, reference, top_k
from ssmpi.model.field_operators import Sum
from ssmpi.model.network import (
    DENSE,
    ROWS,
    Activation,
    Concat,
    Dropout,
    Form,
    Inputs,
    LayerNorm,
    Linear,
    Network,
    Operator,
    Product,
    Slice,
    mlp,
)
from ssmpi.model.networks.zoo import network_of
from ssmpi.model.options import DCNv2Options, ModelOptions
from ssmpi.runtime.errors import DataError, UserError
from ssmpi.tools import export_onnx, onnx_graph

SMALL = {"bottom": (16, 4), "top": (16, 1)}
NETWORKS = {
    "dlrm": ModelOptions("dlrm", **SMALL),
    "dcn_v2": ModelOptions("dcn_v2", **SMALL),
    "dcn_v2 of low rank": ModelOptions("dcn_v2", **SMALL, dcn_v2=DCNv2Options(rank=2)),
    "logistic": ModelOptions("logistic"),
    **{name: paper_networks.NETWORKS[name] for name in ("deepfm", *paper_networks.PAPERS)},
    "top-k": ModelOptions("dlrm", **SMALL, top_k=("bottom.0: 0.7", "pairs: 0.5", "top.0: 0.0")),
}
INPUTS = Inputs(3, 5, 4)


def of_ids_alone(inputs):
    """Gates, of which the first and the last half are added up."""
    gates = Linear("gates", (ROWS,), 6, "sigmoid")
    halves = Slice("first", (gates.name,), 0, 3), Slice("last", (gates.name,), 3, 3)
    added = Sum("added", ("first", "last"))
    layers = [Linear(f"by {kind}", (added.name,), 4, kind) for kind in ("gelu", "silu", "tanh", "prelu")]
    product = Product("product", tuple(layer.name for layer in layers))
    joined = Concat("joined", ("product", *product.inputs))
    ends = LayerNorm("norm", ("joined",), 5), Activation("prelu", ("norm",), "prelu"), Dropout("rest", ("prelu",), 0.5)
    deep = mlp("deep", "rest", [8, 1], last="none")
    return Network((gates, *halves, added, *layers, product, joined, *ends, *deep), inputs)


def network(name, inputs=INPUTS):
    return of_ids_alone(inputs) if name == "of ids alone" else network_of(NETWORKS[name], inputs)


def drawn(network, seed=7):
    """Parameters, and dense (9, features) and rows (9, tables, width) with equal values among them."""
    draw, inputs = np.random.default_rng(seed), network.inputs
    parameters = {name: draw.normal(0, 0.3, shape).astype(np.float32) for name, shape in network.layout}
    dense, rows = draw.normal(size=(9, inputs.dense)), draw.normal(size=(9, inputs.tables, network.rows.width))
    dense[2], rows[3] = 0.0, 0.5
    return parameters, dense.astype(np.float32), rows.astype(np.float32)


def by_onnx(model, dense, rows):
    session = onnxruntime.InferenceSession(model.SerializeToString())
    given = {DENSE: dense, ROWS: rows}
    return session.run(["logit", "probability"], {each.name: given[each.name] for each in session.get_inputs()})


@pytest.mark.parametrize(
    ("name", "inputs"),
    [
        *((name, INPUTS) for name in [*NETWORKS, "of ids alone"]),
        *((name, Inputs(0, tables, 4)) for name in NETWORKS if name != "top-k" for tables in (1, 5)),
    ],
)
def test_it_is_the_forward_pass_of_torch(name, inputs):
    given = network(name, inputs)
    parameters, dense, rows = drawn(given)
    model = onnx_graph.model_of(given, parameters, {}, {})
    tensors = {key: torch.from_numpy(value).double() for key, value in parameters.items()}
    expected = reference.logits(given, tensors, torch.from_numpy(dense).double(), torch.from_numpy(rows).double())
    for some in (slice(0, 9), slice(3, 4), slice(0, 0)):
        logits, probabilities = by_onnx(model, dense[some], rows[some])
        np.testing.assert_allclose(logits, expected[some], rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(probabilities, torch.sigmoid(expected[some]), rtol=0, atol=1e-6)
    assert np.ptp(expected.numpy()) > 0.05


def test_thresholds_are_constants():
    texts = [f"{text} laplace" for text in NETWORKS["top-k"].top_k]
    given = network_of(replace(NETWORKS["top-k"], top_k=tuple(texts)), INPUTS)
    parameters, dense, rows = drawn(given)
    least = {"bottom.0.top_k": 0.8, "pairs.top_k": 1.5, "top.0.top_k": 0.0}
    values = {DENSE: dense, ROWS: rows.reshape(9, -1)}
    tensors = {key: torch.from_numpy(value) for key, value in parameters.items()}
    for operator in given.operators:
        inputs = [torch.from_numpy(values[name]) for name in operator.inputs]
        if isinstance(operator, top_k.Threshold):
            x = inputs[0].numpy()
            values[operator.name] = np.where(np.abs(x) < least[operator.name], 0, x)
        else:
            values[operator.name] = reference.output(operator, tensors, inputs).numpy()
    logits, _ = by_onnx(onnx_graph.model_of(given, parameters, least, {}), dense, rows)
    np.testing.assert_allclose(logits, values["top.2"].squeeze(1), rtol=1e-5, atol=1e-5)


def test_every_kind_of_operator_is_among_these():
    """So a new one has a form in ONNX, or this fails."""
    kinds = {
        kind
        for module in (operators, field_operators, top_k)
        for kind in vars(module).values()
        if isinstance(kind, type) and issubclass(kind, Operator) and kind is not Operator
    }
    used = {type(operator) for name in [*NETWORKS, "of ids alone"] for operator in network(name).operators}
    assert kinds == {*used, top_k.Threshold}


@dataclass(frozen=True)
class Cube(Operator):
    def form(self, *widths):
        return Form(widths[0])


def test_an_operator_without_a_form_is_named():
    given = Network((Concat("all", (DENSE, ROWS)), Cube("cube", ("all",)), Linear("logit", ("cube",), 1)), INPUTS)
    with pytest.raises(DataError, match="operator 'cube': the ONNX form of Cube is not written: score with"):
        onnx_graph.model_of(given, drawn(given)[0], {}, {})


def test_a_missing_package_is_named(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "onnx", None)
    monkeypatch.delitem(sys.modules, "ssmpi.tools.onnx_graph")
    monkeypatch.delattr("ssmpi.tools.onnx_graph")
    with pytest.raises(UserError, match=r"onnx is not installed: pip install 'ssmpi\[onnx\]'"):
        export_onnx.write(None, tmp_path, tmp_path / "model.onnx")
