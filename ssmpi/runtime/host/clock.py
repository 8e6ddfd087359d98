"""The time, and elapsed time."""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime
from pathlib import Path


def now() -> str:
    """The time in UTC, to the second, in ISO 8601."""
    return datetime.now(UTC).isoformat(timespec="seconds")


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
