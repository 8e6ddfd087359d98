"""The wire format of encoded vectors: uint8, a header of six 32-bit words and a body.

========  ==================================================================================================
word      holds
========  ==================================================================================================
0         ``MARK`` and the kind: values of the whole vector or of some entries, float32 or bfloat16; or custom
1, 2, 3   entries of the vector, entries sent, bytes of the payload
4, 5      a checksum of the body, of the kind and of both numbers
========  ==================================================================================================

A sparse body has a block for each 65,536 entries: a word with the count of those sent, their places as 16-bit numbers
or, where that is shorter (from 1/16 on), as bits, and their values. A custom body has the number of its codec, its
length in bytes, and what the codec made. All of it is padded to whole words. A payload is self-describing, so any rank
can decode it, a custom one if it has loaded the codec; a damaged one is rejected.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from ssmpi.compress import kernels
from ssmpi.compress.kernels import BLOCK
from ssmpi.runtime.compiled.bfloat16 import from_bf16
from ssmpi.runtime.errors import PeerError

MARK = 0x55C0DE00
DENSE, DENSE_HALF, SPARSE, SPARSE_HALF, CUSTOM = range(5)  # kinds
HEADER = 24  # bytes
LARGEST = 2**31
DECODERS: dict[int, Callable[[np.ndarray, int], np.ndarray]] = {}  # of custom bodies, by the codec's number


class PayloadError(PeerError):
    """A damaged payload."""

    def __init__(self, found: str) -> None:
        super().__init__(
            f"a payload is damaged: {found}; the network or memory changed it, or versions of ssmpi differ"
        )


def most_bytes(size: int) -> int:
    """The largest possible payload of a vector of ``size`` entries, in bytes."""
    blocks = -(-size // BLOCK)
    return HEADER + 4 * (size + blocks * (1 + BLOCK // 32))


def payload_bytes(kind: int, size: int, found: Sequence[int]) -> int:
    """The length of a payload of ``size`` entries with ``found`` sent in each block, which dense payloads ignore."""
    if kind in (DENSE, DENSE_HALF):
        return HEADER + (4 * size if kind == DENSE else 4 * ((size + 1) // 2))
    sizes = [min(BLOCK, size - start) for start in range(0, size, BLOCK)]
    words = sum(
        1 + min((block + 31) // 32, (count + 1) // 2) + (count if kind == SPARSE else (count + 1) // 2)
        for block, count in zip(sizes, found, strict=True)
    )
    return HEADER + 4 * words


def seal(payload: np.ndarray, kind: int, size: int, count: int) -> np.ndarray:
    """Write the header of a payload, uint8 with its body in place; the payload."""
    words = payload.view(np.uint32)
    words[:4] = MARK | kind, size, count, payload.size
    words[4:6].view(np.uint64)[0] = _checksum(words)
    return payload


def _checksum(words: np.ndarray) -> np.uint64:
    return np.uint64(kernels.checksum(words[6:]) ^ (kernels.checksum(words[:4]) << np.uint64(1)))


def count_of(payload: np.ndarray) -> tuple[int, int]:
    """The number of entries of the vector, and of those sent; PayloadError if it is damaged."""
    words = _checked(payload)
    return int(words[1]), int(words[2])


def is_dense(payload: np.ndarray) -> bool:
    """Whether it holds all entries as float32; PayloadError if it is damaged."""
    return int(_checked(payload)[0]) & 0xFF == DENSE


def length_of(stream: np.ndarray) -> int:
    """Length of the payload at the start of uint8 ``stream``; PayloadError if there is none."""
    if stream.size < HEADER:
        raise PayloadError(f"{stream.size} bytes, a header has {HEADER}")
    length = int(stream[:HEADER].view(np.uint32)[3])
    if not HEADER <= length <= stream.size or length % 4:
        raise PayloadError(f"its header says {length:,} bytes, there are {stream.size:,}")
    return length


def add(payload: np.ndarray, vector: np.ndarray) -> int:
    """Add the payload to ``vector`` float32 and return its number of entries. PayloadError if it is damaged or of a
    vector of another size; the contents of ``vector`` are then undefined.
    """
    words, kind, size, count = _of_size(payload, vector.size)
    if kind in (DENSE, DENSE_HALF, CUSTOM):
        vector += _whole(words[6:], kind, size)
        return count
    for start, found, places, values in _blocks(words[6:], size, count, half=kind == SPARSE_HALF):
        kernels.add_at(vector[start : start + BLOCK], places, values.view(np.float32), found)
    return count


def update(payload: np.ndarray, vector: np.ndarray) -> int:
    """As ``add``, for payloads of a mirror: float32 values replace those in ``vector``, bfloat16 and custom ones are
    differences and are added.
    """
    words, kind, size, count = _of_size(payload, vector.size)
    if kind == DENSE:
        vector[:] = words[6:].view(np.float32)
        return count
    if kind in (DENSE_HALF, CUSTOM):
        vector += _whole(words[6:], kind, size)
        return count
    apply = kernels.add_at if kind == SPARSE_HALF else kernels.put_at
    for start, found, places, values in _blocks(words[6:], size, count, half=kind == SPARSE_HALF):
        apply(vector[start : start + BLOCK], places, values.view(np.float32), found)
    return count


def _of_size(payload: np.ndarray, size: int) -> tuple[np.ndarray, int, int, int]:
    """Words, kind, size and count of a payload of a vector of that size."""
    words = _checked(payload)
    kind, found, count = int(words[0]) & 0xFF, int(words[1]), int(words[2])
    if found != size:
        raise PayloadError(f"it holds {found:,} entries, not {size:,}")
    return words, kind, found, count


def _blocks(
    body: np.ndarray, size: int, count: int, *, half: bool
) -> Iterator[tuple[int, int, np.ndarray, np.ndarray]]:
    """Of each block of a sparse body, uint32: its first entry, how many are sent, their places there and their values,
    both valid until the next and longer than that; PayloadError where it does not hold ``count`` of ``size`` entries.
    """
    at, seen = 0, 0
    places, values = np.empty(min(size, BLOCK), np.uint16), np.empty(min(size, BLOCK), np.uint32)
    for start in range(0, size, BLOCK):
        at, found = kernels.read_block(body, at, min(BLOCK, size - start), half, places, values)
        seen += found
        if at < 0 or seen > count:
            raise PayloadError(f"block {start // BLOCK} is invalid")
        yield start, found, places, values
    if (at, seen) != (body.size, count):
        raise PayloadError(f"its header says {count:,} entries in {body.size:,} words, and has {seen:,} in {at:,}")


def _checked(payload: np.ndarray) -> np.ndarray:
    """Its words, if header and checksum are valid."""
    if length_of(payload) != payload.size:
        raise PayloadError(f"its header says {length_of(payload):,} bytes, it has {payload.size:,}")
    words: np.ndarray = payload.view(np.uint32)
    kind, size, count = int(words[0]) ^ MARK, int(words[1]), int(words[2])
    if kind not in (DENSE, DENSE_HALF, SPARSE, SPARSE_HALF, CUSTOM):
        raise PayloadError("it has no payload's header")
    if words[4:6].view(np.uint64)[0] != _checksum(words):
        raise PayloadError("its checksum is wrong")
    if (
        count > size
        or size >= LARGEST
        or (kind in (DENSE, DENSE_HALF) and payload.size != payload_bytes(kind, size, ()))
    ):
        raise PayloadError(f"{count:,} of {size:,} entries do not fit in {payload.size:,} bytes")
    return words


def _whole(body: np.ndarray, kind: int, size: int) -> np.ndarray:
    """The values of a body that has one for each entry of the vector."""
    if kind == DENSE:
        return body.view(np.float32)
    if kind == CUSTOM:
        number, length = body[:2].tolist()
        if number not in DECODERS:
            raise PayloadError(f"no codec of this rank has the number {number}")
        return DECODERS[number](body[2:].view(np.uint8)[:length], size)
    values = np.empty(size, np.uint32)
    from_bf16(body.view(np.uint16)[:size], values)
    return values.view(np.float32)
