"""What a thread takes of a processor."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def timed(body: Callable[[], T]) -> tuple[float, T]:
    """Seconds of this thread on a processor, and what came of it."""
    began = time.thread_time()
    result = body()
    return time.thread_time() - began, result
