"""The settings of ``[sync]`` that all algorithms share. Those of one algorithm lie beside it, in a section of
its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, TypeVar

T = TypeVar("T")
DENSE = "dense"  # the setting for no codec


@dataclass(frozen=True)
class RoundOptions:
    """The common fields of ``[sync]``; ``ssmpi.sync`` adds the algorithms' sections and documents each field."""

    REMOVED: ClassVar = {"by": "thread"}
    algorithm: str = "ma"
    pace: str = "shadow"
    alpha: float = 0.5
    merge: str = "difference"
    cpu_share: float = 0.0
    every_iterations: int = 0
    every_seconds: float = 0.0
    fragments: int = 1
    warmup_steps: int = 0
    transport: str = "auto"
    codec: str = DENSE
    life_span: int = 1000
    refresh: str = "doubling"
    pull_codec: str = DENSE

    @property
    def by_thread(self) -> bool:
        """Whether each worker thread runs its own rounds, if the algorithm supports that."""
        return self.pace == "fixed_rate"

    def clients(self, threads: int) -> int:
        """How many clients a trainer of so many ``threads`` is to a sync PS: one per thread, or one."""
        return threads if self.by_thread else 1

    def own(self, section: type[T]) -> T:
        """The section of one algorithm."""
        return next(value for value in vars(self).values() if isinstance(value, section))
