"""The layout of an embedding row, derived from the network and used by the embedding PSs, which do not import each
other.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class RowLayout:
    """A ``vector`` of that many floats, 0 for none, followed by one first-order weight if ``weight`` is set. Each of
    the two is a column group with its own accumulator in row-wise Adagrad.
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
