"""Vectors of dense parameters in a trainer's file: one array per parameter, ``<vector>/<parameter>``. Older versions
wrote a vector as one array, which is still read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ssmpi.model.network import floats_in
from ssmpi.model.parameters import by_name

if TYPE_CHECKING:
    from ssmpi.model.operators import Parameter


def split(arrays: Mapping[str, np.ndarray], layout: Sequence[Parameter]) -> dict[str, np.ndarray]:
    """``arrays`` with views by parameter in place of each vector float32 (parameters,)."""
    size, found = floats_in(layout), dict[str, np.ndarray]()
    for name, values in arrays.items():
        if values.dtype == np.float32 and values.shape == (size,):
            found |= {f"{name}/{parameter}": view for parameter, view in by_name(layout, values)}
        else:
            found[name] = values
    return found


def join(arrays: Mapping[str, np.ndarray], layout: Sequence[Parameter]) -> dict[str, np.ndarray]:
    """``arrays`` with what ``split`` took apart joined again; KeyError if a parameter is missing."""
    names = [name for name, _ in layout]
    if not names:
        return dict(arrays)
    vectors = [name.removesuffix(f"/{names[0]}") for name in arrays if name.endswith(f"/{names[0]}")]
    taken = {f"{vector}/{name}" for vector in vectors for name in names}
    found = {name: values for name, values in arrays.items() if name not in taken}
    for vector in vectors:
        found[vector] = np.concatenate([arrays[f"{vector}/{name}"].ravel() for name in names])
    return found
