"""Messages of edges that leave a ``TopK``: an example's kept values and, on the way there, their places. Compiled.

A payload is the block of all values, float32 or bfloat16 (examples, kept), and behind it the places as
``edges.coding`` has it; both sizes follow from the plan, so there is no header.
"""

from __future__ import annotations

import numpy as np

from ssmpi.model import edges
from ssmpi.model.edges import BYTES, WORDS
from ssmpi.runtime.compiled.bfloat16 import from_bf16, to_bf16
from ssmpi.runtime.compiled.jit import njit
from ssmpi.runtime.compiled.kernel_args import numbers_at
from ssmpi.runtime.mpi.mailbox import BF16, DONE, FLOAT32, LATE, PAYLOAD, mark_empty, may_post, may_take, seal

coding = njit(cache=True, nogil=True)(edges.coding)


@njit(cache=True, nogil=True)
def post_kept(
    box: int, values: np.ndarray, places: np.ndarray, shape: tuple[int, int, int], half: bool, there: bool, limit: int
) -> int:
    """Send the values at ``places`` int32 (examples, kept) of ``values`` float32 (examples, width), both flat and of
    this ``shape`` (examples, width, kept), and if ``there`` the places, too. Otherwise as ``mailbox.post``.
    """
    if not may_post(box, limit):
        return LATE
    examples, width, kept = shape
    given, count = values.view(np.uint32), examples * kept
    size = count * (BF16 if half else FLOAT32)
    row, halves = np.empty(kept, np.uint32), numbers_at(box + PAYLOAD, count, np.uint16)
    numbers = numbers_at(box + PAYLOAD, count, np.uint32)
    for i in range(examples):
        target = row if half else numbers[i * kept : (i + 1) * kept]
        for k in range(kept):
            target[k] = given[np.uintp(i * width + places[i * kept + k])]
        if half:
            to_bf16(row, halves[i * kept : (i + 1) * kept])
    seal(box, size + (_write_places(box + PAYLOAD + size, places, shape) if there else 0))
    return DONE


@njit(cache=True, nogil=True)
def take_kept(
    box: int, values: np.ndarray, places: np.ndarray, shape: tuple[int, int, int], half: bool, limit: int
) -> int:
    """Wait for values and places, and write both as ``post_kept`` reads them; the other values become 0. Otherwise as
    ``mailbox.take``.
    """
    examples, width, kept = shape
    size = examples * kept * (BF16 if half else FLOAT32)
    code = may_take(box, size + _size_of_places(shape), limit)
    if code != DONE:
        return code
    _read_places(box + PAYLOAD + size, places, shape)
    for i in range(examples * width):
        values[i] = 0.0
    _spread(box, values, places, shape, half, False)
    mark_empty(box)
    return DONE


@njit(cache=True, nogil=True)
def take_back(
    box: int, values: np.ndarray, places: np.ndarray, shape: tuple[int, int, int], half: bool, add: bool, limit: int
) -> int:
    """Wait for values of known ``places``, and write them there, or ``add`` them; the others stay as they are."""
    code = may_take(box, shape[0] * shape[2] * (BF16 if half else FLOAT32), limit)
    if code != DONE:
        return code
    _spread(box, values, places, shape, half, add)
    mark_empty(box)
    return DONE


@njit(cache=True, nogil=True)
def _spread(
    box: int, values: np.ndarray, places: np.ndarray, shape: tuple[int, int, int], half: bool, add: bool
) -> None:  # fmt: skip
    """Write the payload's values to their places, or add them."""
    examples, width, kept = shape
    row, halves = np.empty(kept, np.float32), numbers_at(box + PAYLOAD, examples * kept, np.uint16)
    numbers = numbers_at(box + PAYLOAD, examples * kept, np.float32)
    for i in range(examples):
        given = row if half else numbers[i * kept : (i + 1) * kept]
        if half:
            from_bf16(halves[i * kept : (i + 1) * kept], row.view(np.uint32))
        for k in range(kept):
            place = np.uintp(i * width + places[i * kept + k])
            if add:
                values[place] += given[k]
            else:
                values[place] = given[k]


@njit(cache=True, nogil=True)
def _size_of_places(shape: tuple[int, int, int]) -> int:
    """Bytes of the places of all examples."""
    examples, width, kept = shape
    how = coding(width, kept)
    return examples * (kept if how == BYTES else 2 * kept if how == WORDS else (width + 7) // 8)


@njit(cache=True, nogil=True)
def _write_places(address: int, places: np.ndarray, shape: tuple[int, int, int]) -> int:
    """Write all places from an address on; returns their size."""
    examples, width, kept = shape
    size, how, count = _size_of_places(shape), coding(width, kept), examples * kept
    octets, words = numbers_at(address, size, np.uint8), numbers_at(address, count, np.uint16)
    if how == BYTES:
        for i in range(count):
            octets[i] = places[i]
    elif how == WORDS:
        for i in range(count):
            words[i] = places[i]
    else:
        across = (width + 7) // 8
        for i in range(size):
            octets[i] = 0
        for i in range(count):
            octets[i // kept * across + places[i] // 8] |= np.uint8(1 << (places[i] & 7))
    return size


@njit(cache=True, nogil=True)
def _read_places(address: int, places: np.ndarray, shape: tuple[int, int, int]) -> None:
    """Read what ``_write_places`` has written."""
    examples, width, kept = shape
    size, how, count = _size_of_places(shape), coding(width, kept), examples * kept
    octets, words = numbers_at(address, size, np.uint8), numbers_at(address, count, np.uint16)
    if how == BYTES:
        for i in range(count):
            places[i] = octets[i]
    elif how == WORDS:
        for i in range(count):
            places[i] = words[i]
    else:
        across, found = (width + 7) // 8, 0
        for i in range(size):
            for bit in range(8):
                if octets[i] >> bit & 1:
                    places[found] = i % across * 8 + bit
                    found += 1
