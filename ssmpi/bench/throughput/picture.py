"""The report of a throughput benchmark as a picture: a panel per batch size, the time of a step by stage, and the cost
of rounds by gap.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ssmpi.bench.harness.reporting import Report, pyplot, save
from ssmpi.bench.throughput.contenders import BARE, GEMM, PYTORCH, SSMPI, TUNED
from ssmpi.bench.throughput.frontier import WORTH, Frontier

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = {SSMPI: "#1f6fb4", BARE: "#7fb37f", GEMM: "#b8b8b8", TUNED: "#b5541c", PYTORCH: "#e08a3c"}
ORDER = (GEMM, BARE, SSMPI, TUNED, PYTORCH)
MEANING = {
    GEMM: "matrix products alone (physical bound)",
    BARE: "bare dense step (this program's ceiling)",
    SSMPI: "ssmpi, the whole job",
    TUNED: "plain PyTorch, tuned, a process for each core",
    PYTORCH: "plain PyTorch, the reference way",
}


def draw(report: Report, target: Path) -> Path | None:
    """Write the picture, a row of panels for each part; None without matplotlib or without anything to draw."""
    found, sections = report["contenders"], report["sections"]
    parts = [
        (rates_by_batch, found, 0.28 * len(labels_of(found)) + 0.6),
        (shares, sections.get("stages"), 0.33 * len(sections.get("stages", ())) + 0.8),
        (frontiers, sections.get("shadow"), 3.0),
    ]
    parts = [part for part in parts if part[1]]
    plt = pyplot() if parts else None
    if not plt:
        return None
    heights = [height for *_, height in parts]
    batches = {each["batch"] for each in (*found.values(), *sections.get("shadow", {}).values())}
    figure = plt.figure(figsize=(max(9.0, 3.0 + 3.4 * len(batches)), sum(heights) + 1.3), constrained_layout=True)
    rows = figure.subfigures(len(parts), 1, height_ratios=heights, squeeze=False)[:, 0]
    for row, (part, values, _) in zip(rows, parts, strict=True):
        part(row, values)
    header = report["header"]
    figure.suptitle(f"on {header['cores']} cores ({header['processor']})", fontsize=11)
    kinds = [kind for kind in ORDER if any(figures["kind"] == kind for figures in found.values())]
    handles = [plt.Rectangle((0, 0), 1, 1, color=COLOURS[kind], label=MEANING[kind]) for kind in kinds]
    if handles:
        figure.legend(handles=handles, loc="outside lower center", ncols=2, fontsize=9, frameon=False)
    return save(figure, target)


def rates_by_batch(figure: Figure, found: Mapping[str, Any]) -> None:
    """A panel for each batch size."""
    batches, labels = sorted({figures["batch"] for figures in found.values()}), labels_of(found)
    for axis, batch in zip(figure.subplots(1, len(batches), sharey=True, squeeze=False)[0], batches, strict=True):
        rates(axis, [figures for figures in found.values() if figures["batch"] == batch], labels, batch)


def labels_of(found: Mapping[str, Any]) -> list[str]:
    """All contenders' labels from top to bottom."""
    return list(dict.fromkeys(label(figures) for figures in ordered(found)))


def frontiers(figure: Figure, found: Mapping[str, Frontier]) -> None:
    """A panel for each batch size: the remaining share of examples per second against the gap between rounds."""
    batches = sorted({each["batch"] for each in found.values()})
    for axis, batch in zip(figure.subplots(1, len(batches), sharey=True, squeeze=False)[0], batches, strict=True):
        for each in (each for each in found.values() if each["batch"] == batch):
            points = sorted((p["gap"], p["ratio"], p["error"]) for p in each["points"] if p["gap"] is not None)
            gaps, ratios, errors = zip(*points, strict=True) if points else ((), (), ())
            axis.errorbar(
                gaps, ratios, errors, marker="o", markersize=4, capsize=2, label=f"S-{each['algorithm'].upper()}"
            )
        axis.axhline(WORTH, color="black", linewidth=0.8, linestyle=":")
        axis.set_xscale("log")
        axis.xaxis.set_major_formatter("{x:g}")
        axis.xaxis.set_minor_formatter("{x:g}")
        axis.set(title=f"batch {batch}", xlabel="iterations between two rounds", ylabel="EPS with rounds / without")
        axis.grid(alpha=0.3)
        axis.legend(fontsize=8)


def ordered(found: Mapping[str, Any]) -> list[dict[str, Any]]:
    """All contenders from top to bottom: ceilings first, then ssmpi, then the others; fp32 before bf16."""
    return sorted(found.values(), key=lambda f: (ORDER.index(f["kind"]), f["precision"] != "fp32", f["trainers"]))


def label(figures: Mapping[str, Any]) -> str:
    """A contender's label on the axis."""
    low = "" if figures["precision"] == "fp32" else f", {figures['precision']}"
    unit = "process" if figures["kind"] == TUNED else "thread"
    plural = ("es" if unit == "process" else "s") if figures["threads"] > 1 else ""
    threads = f"{figures['threads']} {unit}{plural}"
    if figures["kind"] != SSMPI:
        return f"{figures['kind']}, {threads}{low}"
    sync = "" if figures["algorithm"] == "none" else f", S-{figures['algorithm'].upper()}"
    far = "" if figures["transport"] == "auto" else f", by {figures['transport']}"
    return f"ssmpi {figures['trainers']} x {threads}{sync}{far}{low}"


def rates(axis: Axes, found: list[dict[str, Any]], labels: list[str], batch: int) -> None:
    """Bars of medians, with the windows as ticks."""
    for figures in found:
        place = labels.index(label(figures))
        faint = figures["precision"] != "fp32"
        axis.barh(place, figures["median"] / 1e3, color=COLOURS[figures["kind"]], alpha=0.55 if faint else 0.9)
        windows = [rate / 1e3 for rate in figures["windows"]]
        axis.plot(windows, [place] * len(windows), "|", color="black", markersize=8, alpha=0.5)
        end = max(figures["median"] / 1e3, *windows)
        axis.annotate(
            f"{figures['median'] / 1e3:,.1f}", (end, place), (5, 0), textcoords="offset points", va="center", fontsize=8
        )
    axis.set_yticks(range(len(labels)), labels, fontsize=8)
    axis.set(
        title=f"batch {batch}",
        xlabel="thousand examples per second (bar: median, ticks: windows)",
        ylim=(len(labels) - 0.4, -0.6),
    )
    axis.set_xlim(0, 1.15 * max(max(figures["windows"]) for figures in found) / 1e3)
    axis.grid(axis="x", alpha=0.3)
    axis.set_axisbelow(True)


def shares(figure: Figure, jobs: Mapping[str, Any]) -> None:
    """A worker thread's time by stage, stacked."""
    axis = figure.subplots()
    import matplotlib as mpl

    stages = list(dict.fromkeys(stage for job in jobs.values() for stage in job["trainer"]))
    colours = mpl.colormaps["tab20"](range(20))
    for place, job in enumerate(jobs.values()):
        left = 0.0
        for number, stage in enumerate(stages):
            width = 100 * job["trainer"].get(stage, 0.0)
            axis.barh(place, width, left=left, color=colours[number], label=stage if place == 0 else None)
            if width > 3:
                axis.text(left + width / 2, place, f"{width:.0f}", ha="center", va="center", fontsize=8)
            left += width
    axis.set_yticks(range(len(jobs)), [name.removesuffix(", fp32") for name in jobs], fontsize=8)
    axis.invert_yaxis()
    axis.set(title="where a worker thread's time goes, %", xlim=(0, 100))
    axis.legend(loc="upper left", bbox_to_anchor=(1.0, 1.05), fontsize=8, frameon=False)
