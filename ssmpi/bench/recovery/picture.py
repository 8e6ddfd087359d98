"""The dependence of quality on losses: a line fitted to the runs, and its picture."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ssmpi.bench.harness.reporting import Report, pyplot, save
from ssmpi.report.groups import Estimate

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True)
class QualityPoint:
    """One run: its losses, and its NE relative to the run with the same seed and no losses. ``whole`` if it saves all
    rows at once, so that PLS measures its losses.
    """

    strategy: str
    seed: int
    whole: bool
    pls: float
    updates_lost: float
    relative_ne: float


def slope(points: Sequence[tuple[int, float, float]]) -> Estimate:
    """The least-squares line y = slope x through points of seed, x and y: CPR finds accuracy to be linear in PLS. Mean
    and error are NaN without points besides x = 0; the error is also NaN for a single seed. It is a jackknife over
    seeds, because the points of a seed share its run without losses.
    """
    seeds, x, y = np.array([point for point in points if point[1]], float).reshape(-1, 3).T
    if not x.size:
        return Estimate()
    value, without = float(x @ y / (x @ x)), []
    for seed in np.unique(seeds):
        kept = seeds != seed
        without.append(float(x[kept] @ y[kept] / (x[kept] @ x[kept])) if kept.any() else math.nan)
    return Estimate(value, float(np.std(without)) * math.sqrt(len(without) - 1) if len(without) > 1 else math.nan)


def slopes(points: Sequence[QualityPoint]) -> dict[str, Estimate]:
    """Relative NE by PLS, for strategies that save all rows, and by the share of lost updates, for all strategies."""
    return {
        "pls": slope([(point.seed, point.pls, point.relative_ne) for point in points if point.whole]),
        "updates_lost": slope([(point.seed, point.updates_lost, point.relative_ne) for point in points]),
    }


def draw(report: Report, target: Path) -> Path | None:
    """Two panels: relative NE by PLS and by lost updates, with the fitted lines. None without matplotlib."""
    plt = pyplot()
    if not plt:
        return None
    points = [QualityPoint(**point) for point in report["points"]]
    figure, panels = plt.subplots(1, 2, figsize=(11, 4), constrained_layout=True, sharey=True)
    for axes, key, title in zip(panels, ("pls", "updates_lost"), ("PLS", "updates lost, share of all"), strict=True):
        shown = [point for point in points if point.whole or key != "pls"]
        for name in dict.fromkeys(point.strategy for point in shown):
            mine = [point for point in shown if point.strategy == name]
            axes.plot([getattr(p, key) for p in mine], [100 * p.relative_ne for p in mine], "o", label=name)
        _line(axes, max((getattr(point, key) for point in shown), default=0.0), report["slopes"][key]["mean"])
        axes.set_xlabel(title)
        axes.legend(fontsize=8)
    panels[0].set_ylabel("NE against no loss, %")
    return save(figure, target)


def _line(axes: Axes, most: float, slope: float | None) -> None:
    """Draw the fitted line, if there is one."""
    axes.axhline(0.0, color="#b8b8b8", linewidth=0.8)
    if slope is not None and most:
        axes.plot(
            [0.0, most], [0.0, 100 * slope * most], color="#555555", linewidth=1.0, label=f"{100 * slope:+.2f} % x"
        )
