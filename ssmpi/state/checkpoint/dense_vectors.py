"""Vectors of dense parameters in trainers' files: one array per parameter, ``<vector>/<parameter>``. Version 0.1.0
wrote a vector as one array, and members of a group could share a parameter until 0.2.0: then ``rows/<parameter>`` has
the first of a member's rows and their end. Both are still read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ssmpi.model.network import floats_in
from ssmpi.model.parameters import by_name
from ssmpi.runtime.errors import DataError

if TYPE_CHECKING:
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
    return found


def join(members: Sequence[Mapping[str, np.ndarray]], owned: OwnedParameters, path: Path) -> dict[str, np.ndarray]:
    """What ``split`` made of the arrays of all ``members`` of a replica, as vectors of what is ``owned``, and the other
    arrays of the member that owned just that, if there is one; KeyError if a parameter is missing, DataError with the
    ``path`` of the first one's file if some of its rows are.
    """
    parts = [_parameters_by_vector(arrays, owned.network.layout) for arrays in members]
    names = {name for name, _ in owned.layout}
    found: dict[str, np.ndarray] = {}
    for arrays, own in zip(members, parts, strict=True):
        cut = any(name.startswith(ROWS) for name in arrays)
        if (owned.complete and len(members) == 1) or (names in own.values() and not cut):
            taken = {f"{vector}/{parameter}" for vector, parameters in own.items() for parameter in parameters}
            found |= {name: values for name, values in arrays.items() if name not in taken}
    for name, values in members[0].items():
        if values.dtype == np.float32 and values.shape == (owned.network.parameters,):
            found[name] = owned.of(values)
    for vector in dict.fromkeys(vector for own in parts for vector in own):
        found[vector] = np.empty(floats_in(owned.layout), np.float32)
        for parameter, values in by_name(owned.layout, found[vector]):
            whole = _whole(members, vector, parameter)
            if whole.shape != values.shape:
                raise DataError(
                    f"{path}: array '{vector}/{parameter}' has shape {whole.shape} in all files of its trainer,"
                    f" expected {values.shape}: resume from another checkpoint (--checkpoint), or start over"
                )
            values[...] = whole
    return found


def _parameters_by_vector(arrays: Mapping[str, np.ndarray], layout: Sequence[Parameter]) -> dict[str, set[str]]:
    """By vector, the parameters that there are of it."""
    found: dict[str, set[str]] = {}
    for name in arrays:
        for parameter, _ in layout:
            if name.endswith(f"/{parameter}") and name != f"{ROWS}{parameter}":
                found.setdefault(name.removesuffix(f"/{parameter}"), set()).add(parameter)
    return found


def _whole(members: Sequence[Mapping[str, np.ndarray]], vector: str, parameter: str) -> np.ndarray:
    """One parameter of a vector, put together if several members had rows of it."""
    name, rows = f"{vector}/{parameter}", f"{ROWS}{parameter}"
    holders = [arrays for arrays in members if name in arrays] or [members[0]]
    if rows not in holders[0]:
        return holders[0][name]
    in_order = sorted(holders, key=lambda arrays: tuple(arrays[rows]))
    ends = [0, *(arrays[rows][1] for arrays in in_order[:-1])]
    joined = [arrays[name] for end, arrays in zip(ends, in_order, strict=True) if arrays[rows][0] == end]
    return np.concatenate([holders[0][name][:0], *joined])  # without rows that follow a gap, or are there twice
