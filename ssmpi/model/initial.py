"""Initial values of a network's parameters."""

from __future__ import annotations

import math

import numpy as np

from ssmpi.model.field_operators import FieldVectors, FirstOrder
from ssmpi.model.network import DENSE, Linear, Network, Operator, Shape

FIELDS = 0.01  # of the vectors of dense fields: see ``_drawn``


def initial_vector(network: Network, seed: int, means: np.ndarray | None) -> np.ndarray:
    """float32 (parameters,), as facebookresearch/dlrm: weights (m, n) ~ N(0, 2 / (m + n)), biases (m,) ~ N(0, 1 / m).
    First-order weights start at 0, vectors of dense fields ~ N(0, FIELDS^2). With the ``means`` of the dense features,
    float32 (features,), the layers that read them start centered.
    """
    generator = np.random.default_rng([seed, 0])
    found = {
        name: _drawn(operator, shape, generator)
        for operator in network.operators
        for name, shape in network.forms[operator.name].parameters
    }
    if means is not None:
        for operator in network.operators:
            if isinstance(operator, Linear) and operator.inputs == (DENSE,) and operator.bias:
                _center(found[f"{operator.name}.weight"], found[f"{operator.name}.bias"], means)
    return np.concatenate([values.ravel() for values in found.values()])


def _drawn(operator: Operator, shape: Shape, generator: np.random.Generator) -> np.ndarray:
    if isinstance(operator, FirstOrder):
        return np.zeros(shape, np.float32)
    spread = np.sqrt(2.0 / sum(shape)) if len(shape) == 2 else np.sqrt(1.0 / shape[0])
    if isinstance(operator, FieldVectors):
        spread = FIELDS
    return generator.normal(0.0, spread, size=shape).astype(np.float32)


def _center(weight: np.ndarray, bias: np.ndarray, means: np.ndarray) -> None:
    """bias (m,) -= weight (m, n) @ means (n,): a layer sees inputs of mean 0 (LeCun et al. 1998, Efficient BackProp).

    All float32; summed exactly, because replicas on different processors must start equal.
    """
    for unit, row in enumerate(weight.astype(float) * means):
        bias[unit] -= np.float32(math.fsum(row))
