"""Elapsed time."""

from __future__ import annotations

import os
import time
from pathlib import Path


def process_age() -> float:
    """Seconds since this process was started, to a hundredth."""
    started = int(Path("/proc/self/stat").read_text(encoding="ascii").rpartition(") ")[2].split()[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - started / os.sysconf("SC_CLK_TCK")


class Clock:
    """Wall seconds since it was made."""

    def __init__(self) -> None:
        self._began = time.monotonic()

    @property
    def wall(self) -> float:
        """Wall seconds."""
        return time.monotonic() - self._began
