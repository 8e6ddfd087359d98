"""Parameters in a flat float32 vector: views by name, those that one rank owns, and initial values."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from ssmpi.model.field_operators import FieldVectors, FirstOrder
from ssmpi.model.network import DENSE, Activation, LayerNorm, Linear, Network, Operator, Shape, floats_in

if TYPE_CHECKING:
    from ssmpi.model.operators import Parameter

FIELDS = 0.01  # of the vectors of dense fields: see ``_drawn``
SLOPE = 0.25  # of a prelu


def by_name(layout: Sequence[Parameter], vector: np.ndarray) -> list[tuple[str, np.ndarray]]:
    """Views of ``vector`` by parameter."""
    ends = np.cumsum([floats_in([parameter]) for parameter in layout])
    parts = np.split(vector, ends[:-1]) if layout else []
    return [(name, part.reshape(shape)) for (name, shape), part in zip(layout, parts, strict=True)]


@dataclass(frozen=True)
class OwnedParameters:
    """The parameters of ``network`` that a rank steps, saves and exchanges, by default all; its vector holds them in
    the network's order. ``names`` are those of its parameters.
    """

    network: Network
    names: Set[str] | None = None

    @cached_property
    def layout(self) -> list[Parameter]:
        """Names and shapes of what is owned."""
        return self._owned(self.network.layout)

    @property
    def complete(self) -> bool:
        """Whether these are all parameters of the network."""
        return self.layout == self.network.layout

    @property
    def borders(self) -> tuple[int, ...]:
        """The end of each layer (an operator with its parameters) in the vector."""
        ends = itertools.accumulate(floats_in(self._owned(form.parameters)) for form in self.network.forms.values())
        return tuple(dict.fromkeys(end for end in ends if end))

    def of(self, whole: np.ndarray) -> np.ndarray:
        """A copy of what is owned of a vector of the whole network."""
        found = by_name(self.network.layout, whole)
        kept = [values.ravel() for name, values in found if self.has(name)]
        return np.concatenate(kept) if kept else np.empty(0, whole.dtype)

    def within(self, vector: np.ndarray) -> np.ndarray:
        """A vector of the whole network, float32, with this ``vector`` of what is owned in it, and zeros elsewhere."""
        whole = np.zeros(self.network.parameters, np.float32)
        found = by_name(self.network.layout, whole)
        owned = (values for name, values in found if self.has(name))
        for target, (_, values) in zip(owned, by_name(self.layout, vector), strict=True):
            target[...] = values
        return whole

    def has(self, name: str) -> bool:
        """Whether it owns this parameter."""
        return self.names is None or name in self.names

    def _owned(self, layout: Sequence[Parameter]) -> list[Parameter]:
        return [parameter for parameter in layout if self.has(parameter[0])]


def initial_vector(network: Network, seed: int, means: np.ndarray | None) -> np.ndarray:
    """float32 (parameters,), as facebookresearch/dlrm: weights (m, n) ~ N(0, 2 / (m + n)), biases (m,) ~ N(0, 1 / m).
    First-order weights start at 0, vectors of dense fields ~ N(0, FIELDS^2), scales at 1, shifts at 0, slopes at SLOPE,
    as torch's. With the ``means`` of the dense features,
    float32 (features,), the layers that read them start centered.
    """
    generator = np.random.default_rng([seed, 0])
    found = {
        name: _drawn(operator, name, shape, generator)
        for operator in network.operators
        for name, shape in network.forms[operator.name].parameters
    }
    if means is not None:
        for operator in network.operators:
            if isinstance(operator, Linear) and operator.inputs == (DENSE,) and operator.bias:
                _center(found[f"{operator.name}.weight"], found[f"{operator.name}.bias"], means)
    return np.concatenate([values.ravel() for values in found.values()])


def _drawn(operator: Operator, name: str, shape: Shape, generator: np.random.Generator) -> np.ndarray:
    if isinstance(operator, FirstOrder):
        return np.zeros(shape, np.float32)
    if isinstance(operator, LayerNorm):
        return np.full(shape, name.endswith(".scale"), np.float32)
    if isinstance(operator, (Linear, Activation)) and name.endswith(".slope"):
        return np.full(shape, SLOPE, np.float32)
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
