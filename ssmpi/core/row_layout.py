"""What an embedding row holds. The network says so, embedding PSs keep such rows: neither knows the other."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class RowLayout:
    """A ``vector`` of so many floats, 0 for none, and, with ``weight``, one first-order weight behind it.

    Vector and weight are learned apart: each is a group of columns with an accumulator of its own in row-wise Adagrad.
    """

    vector: int
    weight: bool = False

    @property
    def width(self) -> int:
        """Floats of a row."""
        return self.vector + self.weight

    @property
    def groups(self) -> int:
        """Groups of columns."""
        return (self.vector > 0) + self.weight

    def describe(self) -> str:
        """In words, with the setting that decides."""
        parts = [f"embedding.dim = {self.vector}"] if self.vector else []
        return " and ".join([*parts, *(["a first-order weight"] if self.weight else [])])
