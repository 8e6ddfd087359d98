"""Big arrays kept from one use to the next: getting fresh pages from the system costs more than filling them."""

from __future__ import annotations

import numpy as np
from numpy.typing import DTypeLike

SPARE = 64  # the next request is often slightly larger: 1 / SPARE extra is allocated


class Scratch:
    """Named arrays whose memory is used again."""

    def __init__(self) -> None:
        self._memory: dict[str, np.ndarray] = {}

    def array(self, name: str, shape: tuple[int, ...], dtype: DTypeLike) -> np.ndarray:
        """An array with any content; it holds until the same name is asked for again."""
        count = int(np.prod(shape)) * np.dtype(dtype).itemsize
        if name not in self._memory or self._memory[name].size < count:
            self._memory.pop(name, None)
            self._memory[name] = np.empty(count + count // SPARE, dtype=np.uint8)
        return self._memory[name][:count].view(dtype).reshape(shape)
