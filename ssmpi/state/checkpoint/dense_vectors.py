"""Vectors of dense parameters in trainers' files: one array per parameter, ``<vector>/<parameter>``. Where a member of
a group owns some rows of it, ``rows/<parameter>`` has the first one and their end. Older versions wrote a vector as one
array, which is still read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ssmpi.model.network import floats_in
from ssmpi.model.parameters import by_name

if TYPE_CHECKING:
    from ssmpi.model.network import Network
    from ssmpi.model.operators import Parameter
    from ssmpi.model.parameters import OwnedParameters

ROWS = "rows/"


def split(arrays: Mapping[str, np.ndarray], owned: OwnedParameters) -> dict[str, np.ndarray]:
    """``arrays`` with views by parameter in place of each vector float32 (parameters that are ``owned``,)."""
    size, found = floats_in(owned.layout), dict[str, np.ndarray]()
    for name, values in arrays.items():
        if values.dtype == np.float32 and values.shape == (size,):
            found |= {f"{name}/{parameter}": view for parameter, view in by_name(owned.layout, values)}
        else:
            found[name] = values
    whole = dict(owned.network.layout)
    cut = {name: span for name, span in owned.spans.items() if span != (0, whole[name][0])}
    return found | {f"{ROWS}{name}": np.array(span) for name, span in cut.items()}


def join(members: Sequence[Mapping[str, np.ndarray]], owned: OwnedParameters) -> dict[str, np.ndarray]:
    """What ``split`` made of the arrays of all ``members`` of a replica, as vectors of what is ``owned``, and the other
    arrays of the member that owned just that, if there is one; KeyError if a parameter is missing.
    """
    parts = [_spans_by_vector(arrays, owned.network.layout) for arrays in members]
    found: dict[str, np.ndarray] = {}
    for arrays, own in zip(members, parts, strict=True):
        if (owned.complete and len(members) == 1) or owned.spans in own.values():
            taken = {f"{vector}/{parameter}" for vector, spans in own.items() for parameter in spans}
            found |= {
                name: values for name, values in arrays.items() if name not in taken and not name.startswith(ROWS)
            }
    for name, values in members[0].items():
        if values.dtype == np.float32 and values.shape == (owned.network.parameters,):
            found[name] = owned.of(values)
    for vector in dict.fromkeys(vector for own in parts for vector in own):
        holders = [(arrays, own.get(vector, {})) for arrays, own in zip(members, parts, strict=True)]
        found[vector] = owned.of(_whole(vector, holders, owned.network))
    return found


def _spans_by_vector(
    arrays: Mapping[str, np.ndarray], layout: Sequence[Parameter]
) -> dict[str, dict[str, tuple[int, int]]]:
    """By vector, the rows that there are of each parameter."""
    found: dict[str, dict[str, tuple[int, int]]] = {}
    for name in arrays:
        for parameter, shape in layout:
            if name.endswith(f"/{parameter}") and name != f"{ROWS}{parameter}":
                start, stop = arrays.get(f"{ROWS}{parameter}", (0, shape[0]))
                found.setdefault(name.removesuffix(f"/{parameter}"), {})[parameter] = int(start), int(stop)
    return found


def _whole(
    vector: str, holders: Sequence[tuple[Mapping[str, np.ndarray], Mapping[str, tuple[int, int]]]], network: Network
) -> np.ndarray:
    """A vector of all parameters of which the holders have rows each."""
    whole = np.empty(network.parameters, np.float32)
    for parameter, values in by_name(network.layout, whole):
        missing = len(values)
        for arrays, spans in holders:
            if parameter in spans:
                start, stop = spans[parameter]
                values[start:stop] = arrays[f"{vector}/{parameter}"]
                missing -= stop - start
        if missing > 0:
            next(arrays for arrays, spans in holders if parameter not in spans)[f"{vector}/{parameter}"]
    return whole
