"""Numbers in readable units."""

from __future__ import annotations


def in_units(size: float) -> str:
    """A number of bytes, in the most readable unit."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:,.1f} TB"
