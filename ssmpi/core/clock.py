"""How long something takes."""

from __future__ import annotations

import time


class Clock:
    """Wall seconds since it was made."""

    def __init__(self) -> None:
        self._began = time.monotonic()

    @property
    def wall(self) -> float:
        """Wall seconds."""
        return time.monotonic() - self._began
