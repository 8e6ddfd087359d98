"""Pictures of a lockstep study: NE by gap and by trainers, and the intervals of all comparisons."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from jobs.lab.lockstep.comparisons import FAMILIES, Results, against
from jobs.lab.lockstep.design import FOREGROUND, ONE, SHADOW, UNSYNCED, Arm, StudyDesign, Subject
from jobs.lab.lockstep.equivalence import Verdict
from ssmpi.runtime.files import atomic_file
from ssmpi.tools.report import figures
from ssmpi.tools.report.groups import estimate

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.typing import ColorType

APART = 0.3  # the spread of the marks at one place, as a share of the distance to the next
COLOURS = {"equal": "#3f90da", "better": "#832db6", "worse": "#bd1f01", "undecided": "#808080"}
MARKS = {
    SHADOW: {"marker": "o", "linestyle": "-"},
    FOREGROUND: {"marker": "s", "linestyle": "--", "markerfacecolor": "none"},
}


def draw(design: StudyDesign, results: Results, verdicts: Sequence[Verdict]) -> list[Path]:
    """``verdicts.png``, and ``trend.png`` where there are references; UserError without matplotlib."""
    drawn = {}
    with figures.style(figures.LIGHT):
        if design.options.trainers:
            drawn[design.folder / "trend.png"] = figures.render(trend(design, results), "png")
        drawn[design.folder / "verdicts.png"] = figures.render(forest(verdicts, design.options.margin), "png")
    for file, content in drawn.items():
        atomic_file.write(file, content)
    return list(drawn)


def trend(design: StudyDesign, results: Results) -> Figure:
    """NE relative to one trainer on the same rows: a panel by gap for each number of trainers, then a panel by trainers
    for each gap.
    """
    options = design.options
    across = [(f"{n} trainers", "gap (iterations)", [(n, gap) for gap in options.gaps]) for n in options.trainers]
    along = [(f"gap {gap:g}", "trainers", [(n, gap) for n in options.trainers]) for gap in options.gaps]
    panels = [panel for panel in (*across, *along) if len(panel[2]) > 1]
    figure = figures.new(3.4 * max(2, len(panels)), 4.6)
    colours = figures.colours(len(design.algorithms))
    grid = np.atleast_1d(figure.subplots(1, len(panels) or 1, sharey=True))
    for axes, (title, label, places) in zip(grid, panels, strict=False):
        ticks = [f"{gap:g}" if "gap" in label else str(n) for n, gap in places]
        axes.set_xticks(range(len(places)), ticks)
        axes.set(title=title, xlabel=label, xlim=(-0.5, len(places) - 0.5))
        axes.axhspan(-100 * options.margin, 100 * options.margin, color="#808080", alpha=0.15, linewidth=0)
        _lines(axes, design, results, colours, places)
    grid[0].set_ylabel("test NE against one trainer on the same rows, %")
    handles, names = grid[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside upper left", ncols=4)
    return figure


def _lines(
    axes: Axes, design: StudyDesign, results: Results, colours: list[ColorType], places: list[tuple[int, float]]
) -> None:
    """A line for each algorithm and pace, and one without rounds: means and standard errors."""
    lines = [
        (name, pace, colour)
        for name, colour in zip(design.algorithms, colours, strict=True)
        for pace in design.options.paces
    ]
    aside = np.linspace(-APART / 2, APART / 2, len(lines) + 1)
    style: dict[str, Any] = {"markersize": 4.5, "capsize": 2, "linewidth": 1.1}
    for (name, pace, colour), shift in zip(lines, aside, strict=False):
        found = [against(Arm(Subject(name, n), pace, gap), ONE, results) for n, gap in places]
        _marks(axes, found, shift, color=colour, label=f"{pace}-{name}", **MARKS[pace], **style)
    found = [against(Arm(Subject(UNSYNCED, n)), ONE, results) for n, _ in places]
    _marks(axes, found, aside[-1], color="#808080", label=UNSYNCED, marker="D", linestyle=":", **style)


def _marks(axes: Axes, found: Sequence[np.ndarray], shift: float, **style: Any) -> None:
    known = [estimate(list(values)) for values in found]
    y, error = ([100 * value for value in values] for values in zip(*((e.mean, e.error) for e in known), strict=True))
    axes.errorbar(np.arange(len(found)) + shift, y, error, **style)


def forest(verdicts: Sequence[Verdict], margin: float) -> Figure:
    """A line for each comparison: mean and interval, with the margin shaded. Comparisons with references, which can be
    far from 0, have their own scale.
    """
    found = {family: [v for v in verdicts if v.comparison.family == family] for family in FAMILIES}
    groups = [(family, members) for family, members in found.items() if members]
    heights = [1.2 + len(members) for _, members in groups]
    figure = figures.new(9.5, 0.24 * sum(heights) + 1.6)
    panels = np.atleast_1d(figure.subplots(len(groups), 1, height_ratios=heights))
    for axes in panels[1:-1]:
        axes.sharex(panels[0])
    for axes, (family, members) in zip(panels, groups, strict=True):
        axes.axvspan(-100 * margin, 100 * margin, color="#808080", alpha=0.15, linewidth=0)
        axes.axvline(0.0, color="#808080", linewidth=0.8)
        for k, verdict in enumerate(members):
            low, high = verdict.interval
            colour = COLOURS[verdict.text.split(",")[0]]
            axes.plot([100 * low, 100 * high], [k, k], color=colour, linewidth=1.6)
            axes.plot([100 * verdict.mean], [k], "o", color=colour, markersize=4.5)
        axes.set_yticks(range(len(members)), [f"{v.comparison.name}: {v.text}" for v in members])
        axes.set_ylim(len(members) - 0.4, -0.6)
        axes.set_title(family, loc="left")
        axes.grid(axis="y", visible=False)
        if axes in panels[:-2]:
            axes.tick_params(labelbottom=False)
    panels[-1].set_xlabel(
        "difference of test NE, %, with intervals as they are without correction (shaded: the margin)"
    )
    return figure
