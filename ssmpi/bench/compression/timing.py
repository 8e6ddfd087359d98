"""Measures a thread's CPU time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def timed(body: Callable[[], T]) -> tuple[float, T]:
    """CPU seconds of this thread, and the result of ``body``."""
    began = time.thread_time()
    result = body()
    return time.thread_time() - began, result
