"""The scenarios of ``ssmpi bench cluster``: algorithms, paces and servers to compare, for several numbers of
trainers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Scenario:
    """``period``: iterations between foreground rounds, 0 for background rounds; ``narrow``: the embedding PSs' links
    are limited too.
    """

    algorithm: str = "none"
    period: int = 0
    sync_ps: int = 0
    embedding_ps: int = 1
    narrow: bool = False

    @property
    def name(self) -> str:
        """The name in tables and for ``--only``: ``FR-EASGD-5, 2 sync PSs``."""
        if self.narrow:
            return f"no rounds, {_count(self.embedding_ps, 'narrow embedding PS')}"
        if self.algorithm == "none":
            return "no rounds"
        pace = f"FR-{self.algorithm.upper()}-{self.period}" if self.period else f"S-{self.algorithm.upper()}"
        return pace + (f", {_count(self.sync_ps, 'sync PS')}" if self.sync_ps else "")

    def overrides(self, trainers: int) -> tuple[str, ...]:
        """The settings of this scenario, on top of the common run file."""
        return (
            f"topology.trainers={trainers}",
            f"topology.sync_ps={self.sync_ps}",
            f"topology.embedding_ps={self.embedding_ps}",
            f"sync.algorithm={self.algorithm}",
            f"sync.pace={'fixed_rate' if self.period else 'shadow'}",
            f"sync.every_iterations={self.period}",
        )

    @property
    def servers(self) -> int:
        """The number of ranks that are not trainers."""
        return self.sync_ps + self.embedding_ps

    def ranks(self, trainers: int) -> int:
        """The number of ranks of its MPI job."""
        return trainers + self.servers


SCENARIOS = (
    Scenario(),
    Scenario("easgd", 5, 1),
    Scenario("easgd", 5, 2),
    Scenario("easgd", 5, 4),
    Scenario("easgd", 30, 1),
    Scenario("easgd", 0, 1),
    Scenario("easgd", 0, 2),
    Scenario("ma"),
    Scenario("ma", 30),
    Scenario("bmuf"),
    Scenario("bmuf", 30),
    Scenario(narrow=True),
    Scenario(embedding_ps=2, narrow=True),
)


def ordered(scenarios: Sequence[Scenario], counts: Sequence[int]) -> list[tuple[Scenario, int]]:
    """All visits, ordered by number of trainers. Averaging needs at least two trainers."""
    averaging = ("ma", "bmuf")
    return [(scenario, n) for n in counts for scenario in scenarios if n > 1 or scenario.algorithm not in averaging]


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number > 1)}"
