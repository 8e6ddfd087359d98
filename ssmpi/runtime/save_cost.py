"""What saving a checkpoint costs training (O_save)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

O_SAVE, STANDSTILL, SLOWDOWN = "O_save", "standstill_seconds", "slowdown_seconds"  # as files have them

LEAST_SAID = 0.005  # seconds


class SaveCost(NamedTuple):
    """Seconds of training: the time it stood still, and the time lost to slower steps while files were written in the
    background. The slowdown of one save may be negative by chance; noise cancels out over many saves.
    """

    standstill: float = 0.0
    slowdown: float = 0.0

    @property
    def seconds(self) -> float:
        """The sum, never less than the standstill."""
        return self.standstill + max(0.0, self.slowdown)

    def plus(self, other: SaveCost) -> SaveCost:
        """The sum of two costs, negative slowdowns included."""
        return SaveCost(self.standstill + other.standstill, self.slowdown + other.slowdown)

    def fields(self) -> dict[str, float]:
        """The JSON fields."""
        return {O_SAVE: self.seconds, STANDSTILL: self.standstill, SLOWDOWN: self.slowdown}

    def describe(self) -> str:
        """In words, without a slowdown that rounds to nothing."""
        slower = f" and lost {self.slowdown:.2f} s to slower steps" * (self.slowdown >= LEAST_SAID)
        return f"training stood still for {self.standstill:.2f} s{slower}"

    @classmethod
    def of(cls, fields: Mapping[str, float]) -> SaveCost:
        """From ``fields``; in those of an earlier version ``O_save`` was the standstill. Zero if there are none."""
        return cls(fields.get(STANDSTILL, fields.get(O_SAVE, 0.0)), fields.get(SLOWDOWN, 0.0))
