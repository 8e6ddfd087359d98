"""The runs of ``python -m jobs.lab cluster``: their settings, beside those that all share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jobs.lab.options import ClusterOptions
from ssmpi.bench.harness import data
from ssmpi.model.places import PLANS
from ssmpi.runtime.words import counted

COMMON = (
    "topology.threads=1", "embedding.transport=messages", "sync.transport=messages", "sync.cpu_share=1.0",
    "checkpoint.every_minutes=0",
)  # fmt: skip

# Small, so many trainers fit; large dense part, few embedding bytes, so each kind of link can be the first to saturate.
SMALL = (
    "data.batch_size=32", "data.block_rows=2048", "model.bottom=[32,8]", "model.top=[128,64,1]", "embedding.dim=8",
    "dense.optimizer=sgd", "embedding.optimizer=sgd", *COMMON,
)  # fmt: skip

# For groups: how they share a network's work depends on its layers.
WHOLE = (*data.KAGGLE, "data.batch_size=128", "data.block_rows=2048", *COMMON)


@dataclass(frozen=True)
class Scenario:
    """``period``: iterations between foreground rounds, 0 for background rounds; ``narrow``: the embedding PSs' links
    are limited too. With a ``plan``, groups of ``group`` trainers, whose links carry ``link_mb`` MB a second and
    direction; ``sync_link_mb`` are those of the sync PSs' links, 0 for ``--link-mb``.
    """

    algorithm: str = "none"
    period: int = 0
    sync_ps: int = 0
    embedding_ps: int = 1
    narrow: bool = False
    group: int = 1
    plan: str = ""
    link_mb: float = 0.0
    sync_link_mb: float = 0.0

    @property
    def name(self) -> str:
        """The name in tables and for ``--only``: ``FR-EASGD-5, 2 sync PSs``."""
        if self.plan:
            return f"groups of {self.group}, {self.plan}, {self.link_mb:g} MB/s"
        if self.narrow:
            return f"no rounds, {counted(self.embedding_ps, 'narrow embedding PS')}"
        if self.algorithm == "none":
            return "no rounds"
        pace = f"FR-{self.algorithm.upper()}-{self.period}" if self.period else f"S-{self.algorithm.upper()}"
        return pace + (f", {counted(self.sync_ps, 'sync PS')}" if self.sync_ps else "")

    def overrides(self, trainers: int) -> tuple[str, ...]:
        """The settings of this scenario, on top of the common run file."""
        chosen = (
            f"topology.trainers={trainers}",
            f"topology.sync_ps={self.sync_ps}",
            f"topology.embedding_ps={self.embedding_ps}",
            f"sync.algorithm={self.algorithm}",
            f"sync.pace={'fixed_rate' if self.period else 'shadow'}",
            f"sync.every_iterations={self.period}",
        )
        if not self.plan:
            return chosen
        return (*chosen, f"topology.group={self.group}", f"hierarchy.plan={self.plan}", "hierarchy.transport=messages")

    @property
    def servers(self) -> int:
        """The number of ranks that are not trainers."""
        return self.sync_ps + self.embedding_ps

    def ranks(self, trainers: int) -> int:
        """The number of ranks of its MPI job."""
        return trainers + self.servers

    def fits(self, trainers: int) -> bool:
        """Whether so many trainers can run it: averaging needs at least two replicas."""
        return trainers % self.group == 0 and (trainers > 1 or self.algorithm not in ("ma", "bmuf"))


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


def visits(options: ClusterOptions) -> list[tuple[Scenario, int]]:
    """All jobs, ordered by number of trainers: those of flat training; where groups are asked for, theirs, by every
    plan, and as many trainers as they are replicas, without rounds.
    """
    if not options.groups:
        return ordered(SCENARIOS, options.trainers)
    alone = {n // group for n in options.trainers for group in options.group if n % group == 0}
    groups = [
        Scenario(group=group, plan=plan, link_mb=link)
        for group in options.group
        if group > 1
        for plan in PLANS
        for link in options.rank_link_mb
    ]
    return [*ordered([Scenario()], sorted(alone)), *ordered(groups, options.trainers)]


def ordered(scenarios: Sequence[Scenario], counts: Sequence[int]) -> list[tuple[Scenario, int]]:
    """All that fit, ordered by number of trainers."""
    return [(scenario, n) for n in counts for scenario in scenarios if scenario.fits(n)]
