"""Collecting garbage in a large process."""

import gc


def collect():
    """Collect all garbage. What remains is not looked through again, which takes half a second each time."""
    gc.collect()
    gc.freeze()
