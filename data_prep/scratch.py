"""Large reusable arrays: getting new pages from the operating system costs more than filling them."""

from __future__ import annotations

import numpy as np
from numpy.typing import DTypeLike

SPARE = 64  # the next request is often slightly larger: 1 / SPARE extra is allocated


class Scratch:
    """Named arrays whose memory is reused."""

    def __init__(self) -> None:
        self._memory: dict[str, np.ndarray] = {}

    def array(self, name: str, shape: tuple[int, ...], dtype: DTypeLike) -> np.ndarray:
        """An uninitialized array, valid until the same name is requested again."""
        count = int(np.prod(shape)) * np.dtype(dtype).itemsize
        if name not in self._memory or self._memory[name].size < count:
            self._memory.pop(name, None)
            self._memory[name] = np.empty(count + count // SPARE, dtype=np.uint8)
        return self._memory[name][:count].view(dtype).reshape(shape)
