"""Parameters in a flat float32 vector: views by name, and those that one rank owns."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
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
    the network's order. ``rows`` gives, by parameter, the slice of its first axis (the outputs of a layer) that it
    owns.
    """

    network: Network
    rows: Mapping[str, slice] | None = None

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
        kept = [self.rows_of(name, values).ravel() for name, values in found if name in self.spans]
        return np.concatenate(kept) if kept else np.empty(0, whole.dtype)

    def within(self, vector: np.ndarray) -> np.ndarray:
        """A vector of the whole network, float32, with this ``vector`` of what is owned in it, and zeros elsewhere."""
        whole = np.zeros(self.network.parameters, np.float32)
        found = by_name(self.network.layout, whole)
        owned = (self.rows_of(name, values) for name, values in found if name in self.spans)
        for target, (_, values) in zip(owned, by_name(self.layout, vector), strict=True):
            target[...] = values
        return whole

    @cached_property
    def spans(self) -> dict[str, tuple[int, int]]:
        """The first row and the end of what is owned of each parameter."""
        rows = {name: slice(None) for name, _ in self.network.layout} if self.rows is None else self.rows
        return {name: rows[name].indices(shape[0])[:2] for name, shape in self.network.layout if name in rows}

    def rows_of(self, name: str, values: np.ndarray) -> np.ndarray:
        """The owned rows of a whole parameter: a view."""
        return values[slice(*self.spans[name])]

    def _owned(self, layout: Sequence[Parameter]) -> list[Parameter]:
        kept = [(name, shape, self.spans[name]) for name, shape in layout if name in self.spans]
        return [(name, (stop - start, *shape[1:])) for name, shape, (start, stop) in kept]
