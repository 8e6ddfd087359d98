"""Words in messages."""

from __future__ import annotations


def counted(number: int, noun: str) -> str:
    """A number with its noun, which takes an s: ``1 rank``, ``2,000 ranks``."""
    return f"{number:,} {noun}{'s' * (number != 1)}"
