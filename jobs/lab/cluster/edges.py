"""``python -m jobs.lab cluster --edges``: what fewer bytes on an edge are worth, by how long the edge's bytes take.

DCT's split with two workers (arXiv 2010.08899, section 3.1): a member computes the bottom MLP up to ``bottom.2``, 256
wide, the other one, which reads the batches, all else. All links are as fast: those between members and, where
gradients are pushed, that of the sync PS. Each member pushes every PERIOD iterations: at batch 128 a push and a pull
then take the busier one about as long as the edge's bytes of so many steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jobs.lab.cluster.scenarios import Scenario, ordered
from jobs.lab.options import ClusterOptions

WIDTH, BATCH, PERIOD = 256, 128, 10
TAGS = 'hierarchy.tags=["bottom.[02]*: 1", "*: 0"]'
SPARSE = 'model.top_k=["bottom.2: 0.95"]'
PUSHES = ("sync.codec=threshold:0.99", "sync.pull_codec=threshold:0")
KINDS = {
    "dense": (False, (), ()),
    "sparse": (False, (SPARSE,), ()),
    "dense, pushes": (True, (), ()),
    "sparse, pushes": (True, (SPARSE,), ()),
    "sparse, sparse pushes": (True, (SPARSE,), PUSHES),
}  # whether gradients are pushed, and the settings of activations and of pushes


@dataclass(frozen=True)
class EdgeScenario(Scenario):
    """``kind`` is one of KINDS; a dense edge's bytes, there and back, take ``steps`` steps."""

    kind: str = ""
    steps: float = 0.0

    @property
    def name(self) -> str:
        """As ``Scenario``."""
        return f"{self.steps:g} steps: {self.kind}"

    def overrides(self, trainers: int) -> tuple[str, ...]:
        """As ``Scenario``."""
        _, activations, pushes = KINDS[self.kind]
        group = f"topology.group={self.group}", "hierarchy.homes=first", TAGS, "hierarchy.transport=messages"
        return (*super().overrides(trainers), *group, f"data.batch_size={BATCH}", *activations, *pushes)


def visits(options: ClusterOptions) -> list[tuple[Scenario, int]]:
    """Every kind at every ratio of ``options.edges``, with every number of trainers that it fits."""
    found: list[Scenario] = []
    for steps in options.edges:
        link = BATCH * WIDTH * 8 / (steps * options.step_ms / 1e3) / 1e6
        for kind, (pushed, *_) in KINDS.items():
            rounds = ("async_ps", PERIOD, 1) if pushed else ("none", 0, 0)
            found.append(EdgeScenario(*rounds, group=2, link_mb=link, sync_link_mb=link, kind=kind, steps=steps))
    return ordered(found, options.trainers)


def gains(rows: Sequence[Mapping[str, Any]], figure: str) -> dict[str, dict[str, float]]:
    """By ratio and kind, how many times as fast as where all is dense that one is, by this ``figure`` of the rows."""
    eps: dict[str, dict[str, float]] = {}
    for row in rows:
        steps, kind = row["shape"].split(" steps: ")
        eps.setdefault(steps, {})[kind] = row[figure]
    return {
        steps: {
            kind: value / found[base]
            for kind, value in found.items()
            if kind != (base := "dense, pushes" if KINDS[kind][0] else "dense") and base in found
        }
        for steps, found in eps.items()
    }


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Those gains as text, measured and in brackets as predicted."""
    found, predicted = gains(rows, "eps"), gains(rows, "predicted_eps")
    kinds = [kind for kind in KINDS if any(kind in each for each in found.values())]
    lines = ["", "Times the EPS where all is dense, measured (predicted):"]
    lines.append(f"{'steps':>6} " + " ".join(f"{kind:>22}" for kind in kinds))
    for steps, each in found.items():
        cells = (f"{each[kind]:.2f} ({predicted[steps][kind]:.2f})" if kind in each else "-" for kind in kinds)
        lines.append(f"{steps:>6} " + " ".join(f"{cell:>22}" for cell in cells))
    return "\n".join(lines)
