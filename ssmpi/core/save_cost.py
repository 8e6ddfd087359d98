"""What saving a checkpoint costs training (O_save)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

O_SAVE, STANDSTILL, SLOWDOWN = "O_save", "standstill_seconds", "slowdown_seconds"  # as files have them

LEAST_SAID = 0.005  # seconds


class SaveCost(NamedTuple):
    """Seconds of training: those that it stood still for, and those lost because it was slower while files were written
    beside it. The latter are less than 0 where it happened to be faster: over many saves chance cancels out.
    """

    standstill: float = 0.0
    slowdown: float = 0.0

    @property
    def seconds(self) -> float:
        """Of both, never less than the standstill."""
        return self.standstill + max(0.0, self.slowdown)

    def plus(self, other: SaveCost) -> SaveCost:
        """That of both, chance included."""
        return SaveCost(self.standstill + other.standstill, self.slowdown + other.slowdown)

    def fields(self) -> dict[str, float]:
        """As files have it."""
        return {O_SAVE: self.seconds, STANDSTILL: self.standstill, SLOWDOWN: self.slowdown}

    def describe(self) -> str:
        """In words, without a slowdown that rounds to nothing."""
        slower = f" and lost {self.slowdown:.2f} s to slower steps" * (self.slowdown >= LEAST_SAID)
        return f"training stood still for {self.standstill:.2f} s{slower}"

    @classmethod
    def of(cls, fields: Mapping[str, float]) -> SaveCost:
        """From ``fields``, or those of an earlier version, where ``O_save`` was the standstill; of none, nothing."""
        return cls(fields.get(STANDSTILL, fields.get(O_SAVE, 0.0)), fields.get(SLOWDOWN, 0.0))
