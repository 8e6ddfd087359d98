"""A network by torch's operators and autograd: the reference for the compiled step, and the step of networks without
one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, reduce
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from torch.nn.functional import gelu, layer_norm, linear, prelu, silu

from ssmpi.model.elementwise_kernels import EPSILON, drop
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
from ssmpi.model.program import NARROWEST
from ssmpi.model.top_k import TopK
from ssmpi.runtime import user_code
from ssmpi.runtime.errors import SettingsError

ACTIVATION: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "none": lambda values: values,
    "relu": torch.relu,
    "sigmoid": torch.sigmoid,
    "gelu": gelu,
    "silu": silu,
    "tanh": torch.tanh,
}
REMEDY = (
    "'by_torch(self, parameters, *inputs)' is given its parameters by the names that form gives them, without the "
    "operator's name, and each input as a tensor (batch, width)"
)


@cache
def _pairs(vectors: int) -> torch.Tensor:
    """(pairs,): where a square of ``vectors`` rows, flattened, has its lower triangle without the diagonal."""
    rows, columns = torch.tril_indices(vectors, vectors, offset=-1)
    return rows * vectors + columns


def logits(
    network: Network, parameters: Mapping[str, torch.Tensor], dense: torch.Tensor, rows: torch.Tensor, *,
    half: bool = False, first_example: int | None = None,
) -> torch.Tensor:  # fmt: skip
    """Logits (batch,) of dense (batch, features) and rows (batch, tables, width), in the precision of what is given;
    ``half``: operands of wide linear layers are rounded to bfloat16. In training, the number of the ``first_example``.
    """
    vector = network.rows.vector
    values = {DENSE: dense, ROWS: rows[:, :, :vector].flatten(1), WEIGHTS: rows[:, :, vector:].flatten(1)}
    for number, operator in enumerate(network.operators):
        inputs = [values[name] for name in operator.inputs]
        if isinstance(operator, Dropout) and first_example is not None:
            values[operator.name] = inputs[0] * _kept(operator, number, first_example, inputs[0])
        elif half and isinstance(operator, Linear) and min(inputs[0].shape[1], operator.outputs) >= NARROWEST:
            values[operator.name] = _linear(operator, parameters, inputs[0], torch.bfloat16).float()
        else:
            values[operator.name] = output(operator, parameters, inputs)
    return values[network.operators[-1].name].squeeze(1)


def _linear(
    operator: Linear, parameters: Mapping[str, torch.Tensor], values: torch.Tensor, kind: torch.dtype
) -> torch.Tensor:
    bias = parameters[f"{operator.name}.bias"].to(kind) if operator.bias else None
    return _activated(
        operator, parameters, linear(values.to(kind), parameters[f"{operator.name}.weight"].to(kind), bias)
    )


def _activated(
    operator: Linear | Activation, parameters: Mapping[str, torch.Tensor], values: torch.Tensor
) -> torch.Tensor:
    if operator.activation == "prelu":
        return prelu(values, parameters[f"{operator.name}.slope"].to(values.dtype))
    return ACTIVATION[operator.activation](values)


def _kept(operator: Dropout, number: int, first_example: int, like: torch.Tensor) -> torch.Tensor:
    """What a dropout multiplies with, (batch, width): 0 where it drops; ``number`` is the operator's."""
    factors = np.ones(like.shape, np.float32)
    drop(factors, first_example, number, operator.dropped, factors, False)
    return torch.from_numpy(factors).to(like.dtype)


def _strongest(values: torch.Tensor, kept: int) -> torch.Tensor:
    """values (batch, width) where they are among the ``kept`` largest in size of their row."""
    order = values.detach().abs().sort(dim=1, descending=True, stable=True).indices
    mask = torch.zeros_like(values, dtype=torch.bool).scatter_(1, order[:, :kept], True)
    return torch.where(mask, values, torch.zeros_like(values))  # not by a product, which keeps infinities and signs


def output(operator: Operator, parameters: Mapping[str, torch.Tensor], inputs: list[torch.Tensor]) -> torch.Tensor:
    """The output (batch, width) of one operator for ``inputs``, each (batch, its width)."""
    match operator:
        case _ if user_code.is_own(type(operator)):
            return _by_torch(operator, parameters, inputs)
        case Linear():
            return _linear(operator, parameters, inputs[0], inputs[0].dtype)
        case DotInteraction():
            vectors = torch.cat(inputs, dim=1).unflatten(1, (operator.tables + 1, -1))
            square = torch.bmm(vectors, vectors.transpose(1, 2)).flatten(1)
            return torch.cat([inputs[0], square.index_select(1, _pairs(operator.tables + 1))], dim=1)
        case Concat():
            return torch.cat(inputs, dim=1)
        case Slice():
            return inputs[0][:, operator.first : operator.first + operator.columns]
        case Gate():
            return inputs[0] * inputs[1] + inputs[2]
        case Activation():
            return _activated(operator, parameters, inputs[0])
        case LayerNorm():
            vectors = inputs[0].unflatten(1, (-1, operator.dim or inputs[0].shape[1]))
            normal = layer_norm(vectors, vectors.shape[2:], eps=EPSILON).flatten(1)
            return normal * parameters[f"{operator.name}.scale"] + parameters[f"{operator.name}.shift"]
        case Product():
            return reduce(torch.mul, inputs)
        case Dropout():
            return inputs[0]
        case TopK():
            return _strongest(inputs[0], operator.kept(inputs[0].shape[1]))
        case Sum():
            return torch.stack(inputs).sum(dim=0)
        case FirstOrder():
            bias, total = parameters[f"{operator.name}.bias"], inputs[-1].sum(dim=1, keepdim=True)
            return (linear(inputs[0], parameters[f"{operator.name}.weight"], bias) if inputs[1:] else bias) + total
        case FieldVectors():
            return (inputs[0].unsqueeze(2) * parameters[f"{operator.name}.vectors"]).flatten(1)
        case FactorizationMachine():
            vectors = inputs[0].unflatten(1, (-1, operator.dim))
            squares = vectors.sum(dim=1).square() - vectors.square().sum(dim=1)
            return 0.5 * squares.sum(dim=1, keepdim=True)
    raise NotImplementedError(f"torch's form of {type(operator).__name__} is not written")


@runtime_checkable
class ByTorch(Protocol):
    """An operator, as torch computes it."""

    def by_torch(self, parameters: Mapping[str, torch.Tensor], *inputs: torch.Tensor) -> torch.Tensor:
        """Its output (batch, width) for ``inputs``, each (batch, its width), by operators that autograd knows;
        ``parameters`` by the names that ``form`` gives them, without the operator's.
        """


def _by_torch(operator: Operator, parameters: Mapping[str, torch.Tensor], inputs: list[torch.Tensor]) -> torch.Tensor:
    """The output of a custom operator; SettingsError says what is wrong with it, and where."""
    kind, path = type(operator), user_code.path_of(type(operator))
    what = f"operator {operator.name!r} ({kind.__name__})"
    if not isinstance(operator, ByTorch):
        raise SettingsError(
            f"{path}: {what} has no method 'by_torch', which computes its output (batch, width) with torch; {REMEDY}"
        )
    begin = f"{operator.name}."
    own = {name.removeprefix(begin): value for name, value in parameters.items() if name.startswith(begin)}
    found: object = user_code.run_user_code(path, what, lambda: operator.by_torch(own, *inputs), REMEDY)
    wanted = len(inputs[0]), operator.form(*(value.shape[1] for value in inputs)).width
    if not isinstance(found, torch.Tensor) or found.shape != wanted:
        given = f"a tensor {tuple(found.shape)}" if isinstance(found, torch.Tensor) else f"{found!r:.60}"
        raise SettingsError(f"{path}: {what}: by_torch returned {given}, its form says {wanted}: fix one of them")
    if found.dtype != inputs[0].dtype:
        kinds = f"a tensor of {found.dtype}, its inputs are {inputs[0].dtype}"
        raise SettingsError(f"{path}: {what}: by_torch returned {kinds}: fix it")
    return found
