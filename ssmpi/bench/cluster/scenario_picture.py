"""The report of ``ssmpi bench cluster`` as a picture: EPS and sync gap by trainers, measured as marks, predicted as
lines.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ssmpi.bench.harness.reporting import pyplot, save

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.typing import ColorType


def draw(report: Mapping[str, Any], target: Path) -> Path | None:
    """Write the picture; None without matplotlib."""
    plt = pyplot()
    if not plt:
        return None
    figure, (speed, gap) = plt.subplots(1, 2, figsize=(13, 5.5), constrained_layout=True)
    scenarios = list(dict.fromkeys(row["shape"] for row in report["rows"]))
    for number, scenario in enumerate(scenarios):
        rows = sorted((row for row in report["rows"] if row["shape"] == scenario), key=lambda row: row["trainers"])
        colour = plt.get_cmap("tab20")(number % 20)
        curve(speed, rows, report["curves"][scenario], "eps", colour)
        curve(gap, rows, report["curves"][scenario], "gap", colour)
        speed.plot([], [], "o-", color=colour, label=scenario)
    speed.set(xlabel="trainers", ylabel="examples per second", ylim=(0, None))
    gap.set(xlabel="trainers", ylabel="iterations between two rounds", ylim=(0, None))
    for axis in (speed, gap):
        axis.grid(alpha=0.3)
    options = report["options"]
    figure.suptitle(
        f"emulated on {report['header']['cores']} cores: a step is a wait of {options['step_ms']:g} ms, sync PS links "
        "are token "
        f"buckets of {options['link_mb']:g} MB/s; marks are measured (hollow: host full), lines predicted",
        fontsize=11,
    )
    handles, labels = speed.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, fontsize=9, frameon=False)
    return save(figure, target)


def curve(
    axis: Axes, rows: list[dict[str, Any]], predicted: list[dict[str, Any]], what: str, colour: ColorType
) -> None:
    """One scenario: measured and predicted values, with hollow marks if the host was full."""
    there = [out for out in predicted if out[what] is not None]
    axis.plot([out["trainers"] for out in there], [out[what] for out in there], "-", color=colour, alpha=0.6)
    for full in (False, True):
        some = [row for row in rows if row[what] is not None and row["host_full"] is full]
        face = "none" if full else colour
        axis.plot(
            [row["trainers"] for row in some], [row[what] for row in some], "o", color=colour, markerfacecolor=face
        )
