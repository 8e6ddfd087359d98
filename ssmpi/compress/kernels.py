"""Compiled loops over payloads. Each releases the GIL; none allocates.

A sparse body is made block by block: a word with the block's count and the form of its places, the places, and the
values. Selection by magnitude first writes a mask of one byte per entry, which compilers vectorize, and then scans it
eight bytes at a time for the set ones. Compilers rarely emit compress instructions, and on Zen 4 and 5 those that write
to memory are microcoded; this form is fast everywhere.
"""

from __future__ import annotations

import numpy as np

from ssmpi.runtime.compiled.hash_table import mix
from ssmpi.runtime.compiled.jit import njit

BLOCK = 65_536  # entries whose places fit into 16 bits
BITMAP = 1 << 31  # in a block's first word: places are bits, not numbers
WEIGHT = np.uint64(0x9E3779B97F4A7C15)
BYTES = np.uint64(0x0101010101010101)


@njit(cache=True, nogil=True, error_model="numpy")
def checksum(words: np.ndarray) -> np.uint64:
    """A sum over uint32 (n,) with a different odd weight for each word: it always detects one changed word, and two
    swapped words.
    """
    total, weight = np.uint64(0), np.uint64(1)
    for i in range(words.shape[0]):
        weight = np.uint64(i) * WEIGHT | np.uint64(1)
        total += np.uint64(words[i]) * weight
    return total


@njit(cache=True, nogil=True, error_model="numpy")
def all_finite(values: np.ndarray) -> bool:
    """Whether float32 (n,) holds neither NaN nor infinity."""
    bad = 0
    for i in range(values.shape[0]):
        bad += not (abs(values[i]) <= np.float32(3.4028235e38))
    return bad == 0


@njit(cache=True, nogil=True, error_model="numpy")
def nonzeros(values: np.ndarray) -> int:
    """How many of float32 (n,) are not zero, NaN included."""
    found = 0
    for i in range(values.shape[0]):
        found += values[i] != np.float32(0.0)
    return found


@njit(cache=True, nogil=True, error_model="numpy")
def take_above(
    vector: np.ndarray, start: int, tau: float, places: np.ndarray, values: np.ndarray, found: int, mask: np.ndarray
) -> int:
    """Move the entries of float32 (n,) that are not below ``tau`` in size, NaN included, to the end of the ``found``
    ones in ``values`` float32, with their places, counted from ``start``, in ``places`` uint16; zeros stay behind.
    Returns how many are found then. ``mask`` uint8 (n or more, of whole words) is scratch space.
    """
    limit, size, words = np.float32(tau), vector.shape[0], mask.view(np.uint64)
    for i in range(size):
        mask[i] = not (abs(vector[i]) < limit)
    for i in range(size, (size + 7) // 8 * 8):
        mask[i] = 0
    for w in range((size + 7) // 8):
        word = words[w]
        while word:
            below = (word & (~word + np.uint64(1))) - np.uint64(1)  # one in each byte before the first that is set
            at = 8 * w + np.int64(((below & BYTES) * BYTES) >> np.uint64(56))
            word &= word - np.uint64(1)
            places[found] = start + at
            values[found] = vector[at]
            vector[at] = np.float32(0.0)
            found += 1
    return found


@njit(cache=True, nogil=True, error_model="numpy")
def take_random(vector: np.ndarray, start: int, seed: int, share: float, places: np.ndarray, values: np.ndarray) -> int:
    """As ``take_above``, but each entry that is not zero with the chance ``share``, by a hash of its place. ``places``
    and ``values`` have space for one more than there can be.
    """
    limit, found = np.uint64(share * 4294967296.0), 0
    for i in range(vector.shape[0]):
        drawn, value = mix(np.uint64(seed) + np.uint64(start + i) * WEIGHT), vector[i]
        hit = (drawn >> np.uint64(32)) < limit and value != 0
        places[found] = i
        values[found] = value
        found += int(hit)
        vector[i] = np.float32(0.0) if hit else value
    return found


@njit(cache=True, nogil=True, error_model="numpy")
def write_block(
    body: np.ndarray, at: int, size: int, places: np.ndarray, values: np.ndarray, found: int, half: bool
) -> int:
    """Write a block of ``size`` entries, of which ``found`` are sent, at word ``at`` of uint32 ``body``; the word after
    it. ``values`` are float32 seen as uint32; as bfloat16 where ``half``.
    """
    bitmap_words, index_words = (size + 31) // 32, (found + 1) // 2
    dense = bitmap_words < index_words
    body[at] = np.uint32(found) | (np.uint32(BITMAP) if dense else np.uint32(0))
    at += 1
    words = bitmap_words if dense else index_words
    for k in range(words):
        body[at + k] = 0
    if dense:
        for k in range(found):
            body[at + (places[k] >> 5)] |= np.uint32(1) << np.uint32(places[k] & 31)
    else:
        for k in range(found):
            body[at + (k >> 1)] |= np.uint32(places[k]) << np.uint32(16 * (k & 1))
    at += words
    if not half:
        for k in range(found):
            body[at + k] = values[k]
        return at + found
    if found & 1:
        body[at + (found >> 1)] = 0
    for k in range(found):
        bits = (values[k] + np.uint32(0x7FFF) + ((values[k] >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
        body[at + (k >> 1)] = bits if not k & 1 else body[at + (k >> 1)] | (bits << np.uint32(16))
    return at + (found + 1) // 2


@njit(cache=True, nogil=True, error_model="numpy")
def give_back_rounding(vector: np.ndarray, places: np.ndarray, values: np.ndarray, found: int) -> None:
    """Add the rounding errors of the ``found`` values, float32 seen as uint32, back to ``vector``, seen likewise."""
    whole, kept = values.view(np.float32), vector.view(np.float32)
    for k in range(found):
        value = whole[k]
        bits = values[k]
        values[k] = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) & np.uint32(0xFFFF0000)
        kept[places[k]] = value - whole[k]


@njit(cache=True, nogil=True, error_model="numpy")
def read_block(
    body: np.ndarray, at: int, size: int, half: bool, places: np.ndarray, values: np.ndarray
) -> tuple[int, int]:
    """The word after the block at word ``at``, and its count; (-1, 0) if there is no such block. ``places`` uint16 and
    ``values``, float32 seen as uint32, become what it holds.
    """
    if at >= body.shape[0]:
        return -1, 0
    dense, found = (body[at] & np.uint32(BITMAP)) != 0, int(np.int32(body[at] & np.uint32(BITMAP - 1)))
    at += 1
    words = (size + 31) // 32 if dense else (found + 1) // 2
    if found > size or at + words + ((found + 1) // 2 if half else found) > body.shape[0]:
        return -1, 0
    seen = 0
    if dense:
        for i in range(32 * words):
            if body[at + (i >> 5)] >> np.uint32(i & 31) & np.uint32(1):
                if i >= size or seen == found:
                    return -1, 0
                places[seen] = i
                seen += 1
        if seen != found:
            return -1, 0
    else:
        before = -1
        for k in range(found):
            place = int(np.int32(body[at + (k >> 1)] >> np.uint32(16 * (k & 1)) & np.uint32(0xFFFF)))
            if place <= before or place >= size:
                return -1, 0
            places[k] = before = place
    at += words
    for k in range(found):
        values[k] = (body[at + (k >> 1)] >> np.uint32(16 * (k & 1))) << np.uint32(16) if half else body[at + k]
    return at + ((found + 1) // 2 if half else found), found


@njit(cache=True, nogil=True, error_model="numpy")
def add_at(vector: np.ndarray, places: np.ndarray, values: np.ndarray, found: int) -> None:
    """vector[places] += values, float32."""
    for k in range(found):
        vector[places[k]] += values[k]


@njit(cache=True, nogil=True, error_model="numpy")
def put_at(vector: np.ndarray, places: np.ndarray, values: np.ndarray, found: int) -> None:
    """vector[places] = values, float32."""
    for k in range(found):
        vector[places[k]] = values[k]
