"""The traffic of a run as text, from its ``result.json``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ssmpi.runtime.traffic import LINKS, ROWS, Link

HEADINGS = (*(f"{link.replace('_', ' ')}, MB" for link in LINKS), "bytes an example", "rows in place")


def cells(result: Mapping[str, Any]) -> list[str]:
    """Under ``HEADINGS``, from ``result.json``; none where a run did not count."""
    found, examples = result.get("bytes"), result.get("examples")
    if not isinstance(found, dict) or not examples:
        return []
    found = {Link.GROUP.name.lower(): 0.0, **found}  # older runs had no groups
    if not all(name in found for name in (*LINKS, ROWS)):
        return []
    sizes = [found[link] for link in LINKS]
    return [*map(megabytes, sizes), f"{sum(sizes) / examples:,.1f}", f"{found[ROWS]:,.0f}"]


def in_words(result: Mapping[str, Any]) -> str:
    """The traffic of all trainers in words; empty if a run did not count it."""
    texts = cells(result)
    if not texts:
        return ""
    parts = [f"{link.replace('_', ' ')} {text}" for link, text in zip(LINKS, texts, strict=False) if text != "0"]
    sent = f"sent: {', '.join(parts)} MB; {texts[-2]} bytes an example" if parts else "sent: nothing"
    if isinstance(result.get("density"), float):
        sent += f"; {result['density']:.2%} of the entries pushed"
    return f"{sent}; {texts[-1]} rows in place" if texts[-1] != "0" else sent


def megabytes(size: float) -> str:
    """``12,345.7``, and of what is less than one three digits."""
    return f"{size / 1e6:,.1f}" if size >= 1e6 else f"{size / 1e6:.3g}"
