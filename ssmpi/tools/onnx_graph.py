"""A network as an ONNX graph, operator by operator, as ``model.reference`` computes it by torch.

Operators of opset 17 (2022) only, in float32. The graph computes a model as it is scored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from ssmpi.model.elementwise_kernels import EPSILON
from ssmpi.model.field_operators import FactorizationMachine, FieldVectors, FirstOrder, Sum
from ssmpi.model.network import (
    DENSE,
    ROWS,
    WEIGHTS,
    Activation,
    Concat,
    DotInteraction,
    Dropout,
    Gate,
    LayerNorm,
    Linear,
    Network,
    Operator,
    Product,
    Slice,
)
from ssmpi.model.top_k import Threshold, TopK
from ssmpi.runtime import user_code
from ssmpi.runtime.errors import DataError

OPSET, IR_VERSION = 17, 8
PRODUCER = "ssmpi"
LOGIT, PROBABILITY = "logit", "probability"
ACTIVATION = {"relu": "Relu", "sigmoid": "Sigmoid", "tanh": "Tanh"}


class Graph:
    """The nodes and constants of a graph so far. ``parameters`` are constants by name, ``thresholds`` those of
    ``Threshold`` operators.
    """

    def __init__(self, parameters: Mapping[str, np.ndarray], thresholds: Mapping[str, float]) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, onnx.TensorProto] = {}
        self.thresholds, self._parameters = thresholds, parameters

    def node(self, kind: str, *inputs: str, output: str = "", **attributes: Any) -> str:
        """Add a node; the name of its output."""
        name = output or f"/{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [name], **attributes))
        return name

    def constant(self, values: object, kind: type = np.int64) -> str:
        """Add a constant."""
        return self._add(f"/constant/{len(self.constants)}", np.asarray(values, kind))

    def parameter(self, name: str) -> str:
        """Add a parameter."""
        return self._add(name, self._parameters[name])

    def _add(self, name: str, values: np.ndarray) -> str:
        self.constants[name] = numpy_helper.from_array(np.ascontiguousarray(values), name)
        return name

    def columns(self, x: str, first: int, end: int, axis: int) -> str:
        """Of x, those ``[first, end)`` along an axis."""
        return self.node("Slice", x, *(self.constant([number]) for number in (first, end, axis)))

    def total(self, x: str, *, keep: bool = True) -> str:
        """The sum of x along its axis 1."""
        return self.node("ReduceSum", x, self.constant([1]), keepdims=int(keep))

    def shaped(self, x: str, *shape: int) -> str:
        """x (batch, its width) as (batch, *shape)."""
        return self.node("Reshape", x, self.constant([0, *shape]))

    def zeros_like(self, x: str) -> str:
        """Zeros of x's shape."""
        return self.node("ConstantOfShape", self.node("Shape", x))


def model_of(
    network: Network, parameters: Mapping[str, np.ndarray], thresholds: Mapping[str, float], about: Mapping[str, str]
) -> onnx.ModelProto:  # fmt: skip
    """``network`` with parameters float32 by name: from ``dense`` (batch, features), if it reads that, and ``rows``
    (batch, tables, width) to ``logit`` and ``probability`` (batch,). ``about`` is stored as metadata. DataError names
    an operator that ONNX does not have.
    """
    graph, vector, width = Graph(parameters, thresholds), network.rows.vector, network.rows.width
    read = {name for operator in network.operators for name in operator.inputs}
    values = {DENSE: DENSE}
    for name, first, end in ((ROWS, 0, vector), (WEIGHTS, vector, width)):
        if name in read:
            some = ROWS if end - first == width else graph.columns(ROWS, first, end, axis=2)
            values[name] = graph.node("Flatten", some, axis=1)
    for operator in network.operators:
        widths = [network.widths[name] for name in operator.inputs]
        values[operator.name] = output(graph, operator, [values[name] for name in operator.inputs], widths)
    logit = graph.node("Squeeze", values[network.operators[-1].name], graph.constant([1]), output=LOGIT)
    graph.node("Sigmoid", logit, output=PROBABILITY)
    shapes = {DENSE: [network.inputs.dense], ROWS: [network.inputs.tables, width]}
    inputs = [_floats(name, shapes[name]) for name in (DENSE, ROWS) if name == ROWS or name in read]
    outputs = [_floats(name, []) for name in (LOGIT, PROBABILITY)]
    body = helper.make_graph(graph.nodes, "network", inputs, outputs, list(graph.constants.values()))
    opset = [helper.make_opsetid("", OPSET)]
    model = helper.make_model(body, opset_imports=opset, ir_version=IR_VERSION, producer_name=PRODUCER)
    helper.set_model_props(model, dict(about))
    onnx.checker.check_model(model, full_check=True)
    return model


def _floats(name: str, shape: Sequence[int]) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", *shape])


def output(graph: Graph, operator: Operator, inputs: Sequence[str], widths: Sequence[int]) -> str:
    """Add the nodes of one operator; the name of its output. ``inputs`` are names of values (batch, width), of these
    ``widths``. DataError if ONNX has no form of it.
    """
    match operator:
        case _ if user_code.is_own(type(operator)):
            raise DataError(
                f"operator {operator.name!r} ({user_code.kind_of(type(operator))}) is your own, and only torch knows "
                "how to compute it: score with 'ssmpi predict', or export with --format torch"
            )
        case Linear():
            return _linear(graph, operator, inputs[0])
        case DotInteraction():
            return _pairs(graph, inputs, operator.tables + 1, widths[0])
        case Concat():
            return graph.node("Concat", *inputs, axis=1)
        case Slice():
            return graph.columns(inputs[0], operator.first, operator.first + operator.columns, axis=1)
        case TopK():
            return _strongest(graph, inputs[0], operator.kept(widths[0]))
        case Threshold():
            least = graph.constant(graph.thresholds[operator.name], np.float32)
            small = graph.node("Less", graph.node("Abs", inputs[0]), least)
            return graph.node("Where", small, graph.zeros_like(inputs[0]), inputs[0])
        case FirstOrder():
            first = graph.parameter(f"{operator.name}.bias")
            if len(inputs) > 1:
                weight = graph.parameter(f"{operator.name}.weight")
                first = graph.node("Gemm", inputs[0], weight, first, transB=1)
            return graph.node("Add", first, graph.total(inputs[-1]))
        case FieldVectors():
            x = graph.node("Unsqueeze", inputs[0], graph.constant([2]))
            return graph.node("Flatten", graph.node("Mul", x, graph.parameter(f"{operator.name}.vectors")), axis=1)
        case FactorizationMachine():
            return _factorization(graph, graph.shaped(inputs[0], widths[0] // operator.dim, operator.dim))
    return _elementwise(graph, operator, inputs, widths[0])


def _elementwise(graph: Graph, operator: Operator, inputs: Sequence[str], width: int) -> str:
    """Of an operator whose output is as wide as its inputs."""
    match operator:
        case Gate():
            return graph.node("Add", graph.node("Mul", *inputs[:2]), inputs[2])
        case Sum():
            return graph.node("Sum", *inputs)
        case Product():
            return reduce(lambda x, y: graph.node("Mul", x, y), inputs)
        case Activation():
            return _activated(graph, operator, inputs[0])
        case LayerNorm():
            return _normalized(graph, operator, inputs[0], width)
        case Dropout():
            return inputs[0]
    raise DataError(
        f"operator {operator.name!r}: the ONNX form of {type(operator).__name__} is not written: score with "
        "'ssmpi predict', or export with --format torch"
    )


def _linear(graph: Graph, operator: Linear, x: str) -> str:
    names = ["weight", "bias"] if operator.bias else ["weight"]
    out = graph.node("Gemm", x, *(graph.parameter(f"{operator.name}.{name}") for name in names), transB=1)
    return _activated(graph, operator, out)


def _activated(graph: Graph, operator: Linear | Activation, x: str) -> str:
    match operator.activation:
        case "none":
            return x
        case "prelu":
            return graph.node("PRelu", x, graph.parameter(f"{operator.name}.slope"))
        case "silu":
            return graph.node("Mul", x, graph.node("Sigmoid", x))
        case "gelu":
            wave = graph.node("Erf", graph.node("Mul", x, graph.constant(0.5**0.5, np.float32)))
            share = graph.node("Add", wave, graph.constant(1.0, np.float32))
            return graph.node("Mul", graph.node("Mul", x, share), graph.constant(0.5, np.float32))
        case other:
            return graph.node(ACTIVATION[other], x)


def _normalized(graph: Graph, operator: LayerNorm, x: str, width: int) -> str:
    dim = operator.dim or width
    ones, vectors = graph.constant(np.ones(dim), np.float32), graph.shaped(x, width // dim, dim)
    normal = graph.node("Flatten", graph.node("LayerNormalization", vectors, ones, epsilon=EPSILON), axis=1)
    scale, shift = (graph.parameter(f"{operator.name}.{name}") for name in ("scale", "shift"))
    return graph.node("Add", graph.node("Mul", normal, scale), shift)


def _pairs(graph: Graph, inputs: Sequence[str], count: int, dim: int) -> str:
    rows, columns = np.tril_indices(count, -1)
    vectors = graph.shaped(graph.node("Concat", *inputs, axis=1), count, dim)
    square = graph.node("MatMul", vectors, graph.node("Transpose", vectors, perm=[0, 2, 1]))
    flat = graph.shaped(square, count * count)
    pairs = graph.node("Gather", flat, graph.constant(rows * count + columns), axis=1)
    return graph.node("Concat", inputs[0], pairs, axis=1)


def _strongest(graph: Graph, x: str, kept: int) -> str:
    """Of equal values ONNX's ``TopK`` takes the first ones too; of NaN it says nothing."""
    sizes = graph.node("Abs", x)
    largest = f"/{len(graph.nodes)}"
    places = f"{largest}/places"
    graph.nodes.append(helper.make_node("TopK", [sizes, graph.constant([kept])], [largest, places], axis=1))
    values = graph.node("GatherElements", x, places, axis=1)
    return graph.node("ScatterElements", graph.zeros_like(x), places, values, axis=1)


def _factorization(graph: Graph, vectors: str) -> str:
    total = graph.total(vectors, keep=False)
    squares = graph.total(graph.node("Mul", vectors, vectors), keep=False)
    twice = graph.total(graph.node("Sub", graph.node("Mul", total, total), squares))
    return graph.node("Mul", twice, graph.constant(0.5, np.float32))
