"""The receive buffer; apart from the conversation, so that its users need not load MPI."""

from __future__ import annotations

import numpy as np


class Inbox:
    """A receive buffer that grows to the largest message seen."""

    def __init__(self) -> None:
        self._bytes = np.empty(1 << 16, np.uint8)

    def buffer(self, size: int) -> np.ndarray:
        """The first ``size`` bytes."""
        if size > self._bytes.size:
            self._bytes = np.empty(max(size, 2 * self._bytes.size), np.uint8)
        return self._bytes[:size]
