"""From the keys of a batch to ids, compiled and run without the GIL: what a trainer finds in mapped maps, and how it
groups what it has to ask for.
"""

from __future__ import annotations

import numpy as np
from numba import uint64

from ssmpi.compiled.cache_lines import ask
from ssmpi.compiled.jit import njit
from ssmpi.compiled.kernel_args import array_at
from ssmpi.embedding.kernels import mix
from ssmpi.embedding.key_kernels import NOT_FOUND, SEEN, SHARED_ID, find, owner_of

AHEAD = 12  # keys between the one looked up and the one whose slot is prefetched


@njit(cache=True, nogil=True)
def prefetch(slots: np.ndarray, key: int) -> None:
    """Prefetch the slot where a key is looked up first."""
    mask = slots.size // 2 - 1
    slot = mix(uint64(key)) & uint64(mask)
    ask(uint64(slots.ctypes.data) + uint64(16) * slot)  # type: ignore[call-arg]  # numba gives the first


@njit(cache=True, nogil=True)
def ids_of(
    maps: np.ndarray, servers: int, keys: np.ndarray, columns: np.ndarray, ids: np.ndarray, unknown: np.ndarray,
    dates: bool,
) -> int:  # fmt: skip
    """Write the ids of ``keys`` int64 (batch, keyed features) that are found into their ``columns`` int64 (keyed,) of
    ``ids`` int32 (batch, features). Returns how many were not; ``unknown`` int64 (batch * keyed,) are their positions.

    ``maps`` are the words of ``KernelArgs``: slots and seen of each keyed feature on each PS, empty where they are not
    mapped. ``dates`` marks rows as seen.
    """
    features, missed = keys.shape[1], 0
    flat = keys.reshape(keys.size)
    for i in range(flat.size):
        if i + AHEAD < flat.size:
            key = flat[i + AHEAD]
            place = 4 * ((i + AHEAD) % features * servers + owner_of(key, servers))
            if maps[place + 1]:
                prefetch(array_at(maps, place, np.int64), key)
        key, feature = flat[i], i % features
        where = columns[feature]
        if key == 0:
            ids[i // features, where] = 0
            continue
        owner = owner_of(key, servers)
        place = 4 * (feature * servers + owner)
        row = np.int64(NOT_FOUND)
        if maps[place + 1]:
            row = find(array_at(maps, place, np.int64), key)
        if row == NOT_FOUND:
            ids[i // features, where] = SHARED_ID
            unknown[missed] = i
            missed += 1
            continue
        if dates:
            array_at(maps, place + 2, np.int64)[row] = SEEN
        ids[i // features, where] = row * servers + owner
    return missed


@njit(cache=True, nogil=True)
def group(keys: np.ndarray, unknown: np.ndarray, servers: int, asked: np.ndarray, inverse: np.ndarray) -> np.ndarray:
    """The distinct keys at the ``unknown`` positions of ``keys`` int64 (batch, keyed features), by PS, in order of
    first appearance: ``asked`` int64 (>= unknown, 3) gets key, feature and number of each, ``inverse`` int64 (unknown,)
    which of them each position asks for. Returns where each PS's begin, int64 (servers + 1,).
    """
    flat, features, n = keys.reshape(keys.size), keys.shape[1], unknown.size
    size = 16
    while size < 2 * n:
        size *= 2
    places, found = np.full(size, -1), np.empty((n, 3), np.int64)
    distinct, starts = 0, np.zeros(servers + 1, np.int64)
    for i in range(n):
        key, feature = flat[unknown[i]], unknown[i] % features
        slot = np.int64(mix(uint64(key) + uint64(feature)) & uint64(size - 1))
        while places[slot] >= 0 and (found[places[slot], 0] != key or found[places[slot], 1] != feature):
            slot = (slot + 1) & (size - 1)
        if places[slot] < 0:
            places[slot] = distinct
            found[distinct, 0], found[distinct, 1], found[distinct, 2] = key, feature, 0
            starts[owner_of(key, servers) + 1] += 1
            distinct += 1
        found[places[slot], 2] += 1
        inverse[i] = places[slot]
    for p in range(servers):
        starts[p + 1] += starts[p]
    fill, moved = starts[:-1].copy(), np.empty(distinct, np.int64)
    for d in range(distinct):
        owner = owner_of(found[d, 0], servers)
        asked[fill[owner]] = found[d]
        moved[d] = fill[owner]
        fill[owner] += 1
    for i in range(n):
        inverse[i] = moved[inverse[i]]
    return starts


@njit(cache=True, nogil=True)
def fill_in(
    ids: np.ndarray, unknown: np.ndarray, answers: np.ndarray, inverse: np.ndarray, columns: np.ndarray
) -> None:
    """Write the answers int32 (distinct,) to the positions that asked for them."""
    features = columns.size
    for i in range(unknown.size):
        ids[unknown[i] // features, columns[unknown[i] % features]] = answers[inverse[i]]


@njit(cache=True, nogil=True)
def translate(
    maps: np.ndarray, servers: int, plain: tuple[np.ndarray, np.ndarray], keyed: tuple[np.ndarray, np.ndarray],
    ids: np.ndarray, unknown: np.ndarray, dates: bool,
) -> int:  # fmt: skip
    """As ``ids_of``, and copy the ids of the other features: ``plain`` and ``keyed`` are values and
    columns.
    """
    values, columns = plain
    for i in range(ids.shape[0]):
        for j in range(columns.size):
            ids[i, columns[j]] = values[i, j]
    return ids_of(maps, servers, keyed[0], keyed[1], ids, unknown, dates)
