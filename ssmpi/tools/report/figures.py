"""Plots of runs with matplotlib: learning curves, speed and synchronization, where the time went. Every plot can be
drawn for a light and for a dark page. The runs of a group (``groups``) share a colour.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ssmpi.runtime.errors import UserError
from ssmpi.runtime.files import atomic_file
from ssmpi.runtime.files.log import log
from ssmpi.runtime.files.run_files import PLOT as PLOT_FILE
from ssmpi.tools.report.groups import Group, by_settings, estimate
from ssmpi.tools.report.record import Record, read

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.typing import ColorType

LIGHT, DARK = "petroff10", "dark_background"  # matplotlib's style sheets; the first made for colour-blind readers
INSTALL = "pip install 'ssmpi[plots]'"
POINTS = 300  # of a curve: more cannot be seen
EARLY = 0.1  # of the examples: the first ones may be outside the axes, so that the rest can be seen
SHORT = 0.3  # of the median window's examples
BRIEF = 0.1  # of the median window's seconds
TITLES = {
    "log_loss": "log-loss",
    "ne": "normalized entropy",
    "auc": "AUC",
    "eps": "examples per second",
    "sync_gap_thread": "sync gap (iterations of a thread)",
    "round_seconds": "seconds a round",
    "staleness": "staleness (iterations of a replica during a round)",
    "divergence": "relative distance of a replica from its reference",
}
X = {"examples": ("million examples", 1e-6), "seconds": ("minutes of training", 1 / 60)}
Panel = tuple[str, str]  # what over what: keys of TITLES and X
PLOT: tuple[Panel, ...] = tuple((key, "examples") for key in ("ne", "auc", "eps", "sync_gap_thread"))
CURVES: tuple[Panel, ...] = tuple((key, x) for key in ("log_loss", "ne", "auc") for x in X)
SPEED: tuple[Panel, ...] = tuple(
    (k, "seconds") for k in ("eps", "sync_gap_thread", "round_seconds", "staleness", "divergence")
)
FROM_ZERO = {key for key, _ in SPEED}


def plot(run: Path) -> Path | None:
    """Draw a run's ``plot.png``; says so when matplotlib is not installed."""
    try:
        with style(LIGHT):
            record = read(run)
            figure = curves(by_settings([record]), PLOT)
            figure.suptitle(record.name)
            atomic_file.write(run / PLOT_FILE, render(figure, "png"))
    except UserError as error:
        log.info(f"no plot: {error}")
        return None
    return run / PLOT_FILE


@contextmanager
def style(name: str) -> Iterator[None]:
    """Draw for a light or a dark page; UserError when matplotlib is not installed."""
    try:
        from matplotlib import style as styles
    except ImportError:
        raise UserError(f"matplotlib is not installed: {INSTALL}") from None
    details: dict[str, Any] = {
        "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True,
        "grid.alpha": 0.25, "grid.color": "#808080",
        "axes.titlesize": 11, "axes.titleweight": "bold", "font.size": 9.5, "legend.frameon": False,
        "figure.constrained_layout.use": True, "svg.hashsalt": "ssmpi",
    }  # fmt: skip
    with styles.context([name, details]):
        yield


def render(figure: Figure, form: str) -> bytes:
    """``svg`` on a transparent ground, so that the page's shows through, or ``png``."""
    out = io.BytesIO()
    stamp = {"Date": None} if form == "svg" else {}
    figure.savefig(out, format=form, dpi=130, transparent=form == "svg", metadata=stamp)
    return out.getvalue()


def new(width: float, height: float) -> Figure:
    """An empty figure, in inches; kept by its owner, not by pyplot, so that nothing needs closing."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height))


def colours(count: int) -> list[ColorType]:
    """One a group: the style's own while they last, then steps through a map."""
    import matplotlib as mpl

    cycle = mpl.rcParams["axes.prop_cycle"].by_key()["color"]
    if count <= len(cycle):
        return cycle[:count]
    return list(mpl.colormaps["turbo"](np.linspace(0.05, 0.95, count)))


def curves(groups: Sequence[Group], panels: Sequence[Panel]) -> Figure:
    """Panels in two columns: training windows as lines, evaluations as marks, a colour for each group."""
    lines = math.ceil(len(panels) / 2)
    named = len(groups) > 1
    figure = new(10, 3.1 * lines + (0.22 * math.ceil(len(groups) / 3) if named else 0))
    palette = colours(len(groups))
    grid = list(figure.subplots(lines, 2, squeeze=False).flat)
    for axes in grid[len(panels) :]:
        axes.remove()
    for axes, (key, x) in zip(grid[: len(panels)], panels, strict=True):
        for group, colour in zip(groups, palette, strict=True):
            for record in group.records:
                _draw(axes, record, key, x, colour)
        axes.set(title=TITLES[key], xlabel=X[x][0])
        if key == "eps":
            axes.yaxis.set_major_formatter("{x:,.0f}")
        _limits(axes, groups, key)
    if named:
        _legend(figure, [(group.name, colour) for group, colour in zip(groups, palette, strict=True)])
    else:
        _kinds(figure)
    return figure


def recorded(groups: Sequence[Group], panels: Sequence[Panel]) -> list[Panel]:
    """The panels for which some run has data."""
    lines = [line for group in groups for record in group.records for line in (*record.windows, *record.evaluations)]
    return [panel for panel in panels if any(_known(line, *panel) for line in lines)]


def times(groups: Sequence[Group]) -> Figure:
    """Processor seconds per million examples, by role and kind of thread, averaged over the runs of a group."""
    bars = [(group.name, role, _spent(group, role)) for group in groups for role in _roles(group)]
    kinds = sorted(dict.fromkeys(kind for *_, spent in bars for kind in spent), key=lambda kind: kind == "set-up")
    figure = new(10, 1.2 + 0.32 * len(bars))
    axes = figure.subplots()
    left = np.zeros(len(bars))
    for kind, colour in zip(kinds, colours(len(kinds)), strict=True):
        widths = np.array([spent.get(kind, 0.0) for *_, spent in bars])
        axes.barh(range(len(bars)), widths, left=left, label=kind, color=colour, height=0.7)
        left += widths
    several = len(groups) > 1
    names = [f"{name}: {role}" if several else role for name, role, _ in bars]
    axes.set_yticks(range(len(bars)), [name.replace("_", " ") for name in names])
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    axes.set_xlabel("processor seconds per million examples, all ranks of the role")
    axes.legend(title="threads", loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return figure


def _draw(axes: Axes, record: Record, key: str, x: str, colour: ColorType) -> None:
    scale = X[x][1]
    line = thinned([(w[x] * scale, w[key]) for w in _whole(record.windows) if _known(w, key, x)])
    if len(line):
        axes.plot(*line.T, color=colour, linewidth=1.1, alpha=0.85)
    for split, mark in (("validation", "o"), ("test", "D")):
        marks = [(e[x] * scale, e[key]) for e in record.evaluations if e.get("split") == split and _known(e, key, x)]
        if marks:
            dots: dict[str, Any] = {"marker": mark, "markersize": 4.5, "linestyle": "--", "linewidth": 0.8}
            axes.plot(*np.array(marks).T, color=colour, markeredgecolor="none", **dots)


def _whole(windows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The windows without those that an evaluation or the end cut short: with few examples they are mostly noise, and
    examples reported late make brief ones look many times too fast.
    """
    sizes, seconds = (np.diff([0.0, *(float(w.get(name) or 0) for w in windows)]) for name in ("examples", "seconds"))
    whole = (sizes >= SHORT * np.median(sizes)) & (seconds >= BRIEF * np.median(seconds)) if windows else []
    return [w for w, keep in zip(windows, whole, strict=True) if keep]


def thinned(points: Sequence[tuple[float, float]]) -> np.ndarray:
    """At most ``POINTS`` points float64 (points, 2): means of neighbours."""
    found = np.array(points, dtype=np.float64).reshape(-1, 2)
    if len(found) <= POINTS:
        return found
    return np.array([part.mean(axis=0) for part in np.array_split(found, POINTS)])


def _known(line: dict[str, Any], *keys: str) -> bool:
    return all(isinstance(line.get(key), (int, float)) for key in keys)


def _limits(axes: Axes, groups: Sequence[Group], key: str) -> None:
    """Show what happens after the start, from 0 for rates; say so where there is nothing to show."""
    if not axes.has_data():
        text = "no rounds" if key == "sync_gap_thread" else "no data"
        axes.text(0.5, 0.5, text, ha="center", transform=axes.transAxes)
        return
    if key in FROM_ZERO:
        axes.set_ylim(bottom=0)
        return
    values = [value for group in groups for record in group.records for value in _late(record, key)]
    if values:
        low, high = min(values), max(values)
        margin = 0.06 * (high - low) or 0.01
        axes.set_ylim(low - margin, high + margin)


def _late(record: Record, key: str) -> Iterator[float]:
    """Values of a curve without its start."""
    lines = [line for line in (*_whole(record.windows), *record.evaluations) if _known(line, key, "examples")]
    edge = EARLY * max((line["examples"] for line in lines), default=0)
    yield from (line[key] for line in lines if line["examples"] >= edge)


def _legend(figure: Figure, names: Sequence[tuple[str, ColorType]]) -> None:
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], color=colour, linewidth=2.5, label=name) for name, colour in names]
    figure.legend(handles=handles, loc="outside upper left", ncols=3)


def _kinds(figure: Figure) -> None:
    """With one group only: what lines and marks are."""
    from matplotlib.lines import Line2D

    colour = colours(1)[0]
    looks: dict[str, dict[str, Any]] = {
        "training, before update": {"linestyle": "-"},
        "validation": {"linestyle": "--", "marker": "o"},
        "test": {"linestyle": "", "marker": "D"},
    }
    handles = [Line2D([], [], color=colour, label=name, **look) for name, look in looks.items()]
    figure.legend(handles=handles, loc="outside upper left", ncols=3)


def _roles(group: Group) -> list[str]:
    return list(dict.fromkeys(rank["role"] for record in group.records for rank in record.usage))


def _spent(group: Group, role: str) -> dict[str, float]:
    """Processor seconds per million examples by kind of thread; mean over runs."""
    sums: dict[str, list[float]] = {}
    for record in group.records:
        mine: dict[str, float] = {}
        for rank in record.usage:
            for kind, spent in rank["threads"].items() if rank["role"] == role else ():
                mine[kind] = mine.get(kind, 0.0) + spent["cpu_seconds"]
        for kind, seconds in mine.items():
            sums.setdefault(kind, []).append(1e6 * seconds / max(record.job_examples, 1))
    return {kind: estimate(values).mean for kind, values in sums.items()}
