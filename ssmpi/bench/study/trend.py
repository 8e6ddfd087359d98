"""The picture of a study: quality, speed and sync gap along one axis of its grid."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ssmpi.report import figures
from ssmpi.report.groups import CASE, Estimate, Row, name_of, short

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

APART = 0.3  # the spread of the marks of one setting, as a share of the distance to the next
Points = np.ndarray  # (points, 3): place, mean, standard error


def draw(rows: Sequence[Row]) -> Figure:
    """Three panels along ``axis_of(rows)``, a line for each combination of the other labels."""
    along = axis_of(rows)
    values = list(dict.fromkeys(row.labels[along] for row in rows))
    values = sorted(values) if all(_is_number(value) for value in values) else values
    lines: dict[str, list[Row]] = {}
    for row in rows:
        lines.setdefault(name_of({n: v for n, v in row.labels.items() if n != along}), []).append(row)
    figure = figures.new(12, 3.9 + 0.22 * math.ceil(len(lines) / 4))
    quality = "relative_ne" if any(row.relative_ne for row in rows) else "ne"
    for axes, key in zip(figure.subplots(1, 3), (quality, "eps", "gap_thread"), strict=True):
        spread = np.linspace(-APART / 2, APART / 2, len(lines)) if len(lines) > 1 else [0.0]
        for (name, members), colour, aside in zip(lines.items(), figures.colours(len(lines)), spread, strict=True):
            found = points([(values.index(row.labels[along]), _estimate(row, key)) for row in members])
            style = {"marker": "o", "markersize": 4, "capsize": 2, "linewidth": 1.1}
            axes.errorbar(found[:, 0] + aside, found[:, 1], found[:, 2], color=colour, label=name, **style)
        _describe(axes, key, along, values)
    if len(lines) > 1:
        handles, names = axes.get_legend_handles_labels()
        figure.legend(handles, names, loc="outside upper left", ncols=4)
    return figure


def axis_of(rows: Sequence[Row]) -> str:
    """The label for the x axis: the one with most numeric values, or the first if there are none."""
    counts = {name: len({repr(r.labels[name]) for r in rows if _is_number(r.labels[name])}) for name in rows[0].labels}
    best = max(counts, key=lambda name: counts[name])
    return best if counts[best] > 1 else next(iter(rows[0].labels))


def points(found: Sequence[tuple[int, Estimate]]) -> Points:
    """The known points in order of place; an unknown error becomes 0."""
    known = sorted((place, e.mean, np.nan_to_num(e.error)) for place, e in found if math.isfinite(e.mean))
    return np.array(known, dtype=np.float64).reshape(-1, 3)


def _estimate(row: Row, key: str) -> Estimate:
    if key != "relative_ne":
        found: Estimate = getattr(row, key)
        return found
    if row.is_reference:
        return Estimate(0.0)
    ratio = row.relative_ne or Estimate()
    return Estimate(100 * ratio.mean, 100 * ratio.error)


def _describe(axes: Axes, key: str, along: str, values: Sequence[object]) -> None:
    titles = {"relative_ne": "relative NE, %", "gap_thread": "sync gap (iterations of a thread)"}
    axes.set(title=titles.get(key) or figures.TITLES[key], xlabel=short(along))
    axes.set_xticks(range(len(values)), [str(value) for value in values], rotation=50 if along == CASE else 0)
    axes.set_xlim(-0.5, len(values) - 0.5)
    if key == "eps":
        axes.yaxis.set_major_formatter("{x:,.0f}")
    if key in ("eps", "gap_thread"):
        axes.set_ylim(bottom=0)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
