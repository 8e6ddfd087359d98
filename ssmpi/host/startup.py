"""Faster process start-up."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def without_garbage_collection() -> Iterator[None]:
    """Disable garbage collection during imports: there is next to no garbage, and collecting takes a sixth of the time.
    Objects that exist at the end of the block are frozen, so that later collections skip them.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
