"""Arrays from the beginning of a cache line."""

from __future__ import annotations

import numpy as np

LINE = 64  # bytes


def aligned(shape: tuple[int, ...], kind: type[np.generic] = np.float32) -> np.ndarray:
    """An array, not initialized. NumPy's own large ones begin 16 bytes behind a line, so that each vector of 64 bytes
    that is read or written lies in two.
    """
    size = int(np.prod(shape)) * np.dtype(kind).itemsize
    memory = np.empty(size + LINE, np.uint8)
    first = -memory.ctypes.data % LINE
    return memory[first : first + size].view(kind).reshape(shape)
