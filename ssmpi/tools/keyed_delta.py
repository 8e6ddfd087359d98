"""The changes in a dynamic table, by key, with the keys that are gone.

Of a table whose export has the keys ``K`` a delta has ``K.changed`` int64 (changed,), of rows that are other or new,
and ``K.gone`` int64 (gone,), of rows that expired or were evicted, both ascending. Each tensor ``T`` of the table has
``T.values`` float32 (RESERVED + changed, width): the reserved rows, then those of the changed keys.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from ssmpi.embedding.key_kernels import RESERVED
from ssmpi.runtime.errors import ContentError

CHANGED, GONE, VALUES = ".changed", ".gone", ".values"

Arrays = Mapping[str, np.ndarray]


def difference(keys: str, old: Arrays, new: Arrays) -> dict[str, np.ndarray]:
    """What a delta has of one table, of whose tensors the ``old`` and ``new`` ones have rows of the same sizes, and
    ``keys`` names its keys.
    """
    before, after = old[keys], new[keys]
    _, here, there = np.intersect1d(after, before, assume_unique=True, return_indices=True)
    differs = np.ones(len(after), bool)
    differs[here] = False
    tensors = [name for name in new if name != keys]
    for name in tensors:
        bits = [np.ascontiguousarray(values[RESERVED:]).view(np.uint32) for values in (old[name], new[name])]
        differs[here] |= (bits[0][there] != bits[1][here]).any(axis=1)
    rows = np.concatenate([np.arange(RESERVED), RESERVED + np.flatnonzero(differs)])
    found = {f"{keys}{CHANGED}": after[differs], f"{keys}{GONE}": np.setdiff1d(before, after, assume_unique=True)}
    return found | {f"{name}{VALUES}": np.ascontiguousarray(new[name][rows]) for name in tensors}


def merged(keys: str, tensors: Sequence[str], old: Arrays, delta: Arrays) -> Iterator[tuple[str, np.ndarray]]:
    """Names and arrays of one table after a delta; ContentError names one that no export has."""
    before, changed, gone = old[keys], delta[f"{keys}{CHANGED}"], delta[f"{keys}{GONE}"]
    for name, some in ((keys, before), (f"{keys}{CHANGED}", changed), (f"{keys}{GONE}", gone)):
        check_ascending(name, some)
    if not np.isin(gone, before).all() or np.isin(gone, changed).any():
        raise ContentError(f"{keys}{GONE} are not there, or changed as well")
    kept = ~np.isin(before, np.concatenate([changed, gone]))
    after = np.concatenate([before[kept], changed])
    order = np.argsort(after)
    yield keys, after[order]
    for name in tensors:
        values = delta[f"{name}{VALUES}"]
        check_values(name, old[name], (RESERVED + len(before), *old[name].shape[1:]))
        check_values(f"{name}{VALUES}", values, (RESERVED + len(changed), *old[name].shape[1:]))
        rows = np.concatenate([old[name][RESERVED:][kept], values[RESERVED:]])
        yield name, np.concatenate([values[:RESERVED], rows[order]])


def check_ascending(name: str, values: np.ndarray) -> None:
    """Raise ContentError unless an array is int64 (n,), ascending, each once."""
    if values.dtype != np.int64 or values.ndim != 1 or (values[1:] <= values[:-1]).any():
        raise ContentError(f"{name} are not ascending int64 values, each once")


def check_values(name: str, values: np.ndarray, shape: tuple[int, ...]) -> None:
    """Raise ContentError unless an array is float32, and has this shape."""
    if values.dtype != np.float32 or values.shape != shape:
        raise ContentError(f"{name} is {values.dtype} {values.shape}, not float32 {shape}")
