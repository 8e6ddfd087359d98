"""Arrays that start at a cache line."""

from __future__ import annotations

import numpy as np

LINE = 64  # bytes


def aligned(shape: tuple[int, ...], kind: type[np.generic] = np.float32) -> np.ndarray:
    """An uninitialized array. NumPy's own large arrays start 16 bytes after a cache line, so every 64-byte vector
    access touches two lines.
    """
    size = int(np.prod(shape)) * np.dtype(kind).itemsize
    memory = np.empty(size + LINE, np.uint8)
    first = -memory.ctypes.data % LINE
    return memory[first : first + size].view(kind).reshape(shape)
