"""Initial values of a network's parameters."""

from __future__ import annotations

import math

import numpy as np

from ssmpi.model.network import DENSE, Linear, Network


def initial_vector(network: Network, seed: int, means: np.ndarray | None) -> np.ndarray:
    """float32 (parameters,), as facebookresearch/dlrm: weights (m, n) ~ N(0, 2 / (m + n)), biases (m,) ~ N(0, 1 / m).

    With the ``means`` of the dense features, float32 (features,), layers that read those begin centered.
    """
    generator = np.random.default_rng([seed, 0])
    found = {name: _drawn(shape, generator) for name, shape in network.layout}
    if means is not None:
        for operator in network.operators:
            if isinstance(operator, Linear) and operator.inputs == (DENSE,) and operator.bias:
                _center(found[f"{operator.name}.weight"], found[f"{operator.name}.bias"], means)
    return np.concatenate([values.ravel() for values in found.values()])


def _drawn(shape: tuple[int, ...], generator: np.random.Generator) -> np.ndarray:
    spread = np.sqrt(2.0 / sum(shape)) if len(shape) == 2 else np.sqrt(1.0 / shape[0])
    return generator.normal(0.0, spread, size=shape).astype(np.float32)


def _center(weight: np.ndarray, bias: np.ndarray, means: np.ndarray) -> None:
    """bias (m,) -= weight (m, n) @ means (n,): a layer sees inputs of mean 0 (LeCun et al. 1998, Efficient BackProp).

    All float32; summed exactly, because replicas of different processors must begin equal.
    """
    for unit, row in enumerate(weight.astype(float) * means):
        bias[unit] -= np.float32(math.fsum(row))
