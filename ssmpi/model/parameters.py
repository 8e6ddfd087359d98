"""Parameters in a flat float32 vector: views by name, and those that one rank owns."""

from __future__ import annotations

import itertools
from collections.abc import Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from ssmpi.model.network import floats_in

if TYPE_CHECKING:
    from ssmpi.model.network import Network
    from ssmpi.model.operators import Parameter


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
