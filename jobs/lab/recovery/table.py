"""What the runs of ``python -m jobs.lab recovery`` say together: a table, and lines fitted to quality over losses."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ssmpi.state.recovery.policy import RecoveryInputs
from ssmpi.tools.report.groups import Estimate

HOUR = 3600.0
Row = Mapping[str, Any]
COLUMNS: dict[str, Callable[[Row], str]] = {
    "strategy": lambda row: row["strategy"],
    "T_save": lambda row: f"{row['interval_seconds'] / HOUR:.1f} h",
    "saving": lambda row: _percent(row["saving"].mean),
    "loading": lambda row: _percent(row["loading"].mean),
    "lost": lambda row: _percent(row["lost"].mean),
    "restart": lambda row: _percent(row["restarting"].mean),
    "overhead": lambda row: _percent(row["overhead"].mean),
    "formula": lambda row: _percent(row["expected_overhead"]),
    "PLS": lambda row: f"{row['pls'].mean:.5f}",
    "expected": lambda row: f"{row['expected_pls']:.5f}",
    "updates lost": lambda row: _percent(row["updates_lost"].mean),
    "large tables": lambda row: _percent(row["large_lost"].mean),
    "once a batch": lambda row: _percent(row["batches_lost"].mean),
    "covered": lambda row: "" if math.isnan(row["coverage"].mean) else f"{100 * row['coverage'].mean:.0f} %",
    "NE change": lambda row: _change(row["relative_ne"], 100, 3, " %"),
    "AUC change": lambda row: _change(row["auc_change"], 1, 5, ""),
}
LEGEND = """\
T_save: from one save of all rows to the next; priority saves take an eighth of the rows eight times as often. The
smallest tables, with 1 % of all rows, are saved whole each time, which helps however even access is; the others are
the large tables.
overhead = saving + loading + lost (trained again) + restart, as shares of T_total; formula: what CPR expects of it.
PLS: samples since the newest save of all rows that the lost PSs miss, as a share of all; as in CPR eight priority saves
count as one of all rows, so it is not what they aim at. updates lost: of all accesses, those since each row's own save;
an access is a lookup of an example, so that for strategies that save all rows this is PLS, up to chance. large tables:
of their accesses.
once a batch: of all where a row counts once for each batch that looks it up, as it is updated.
covered: share of the accesses (MFU), sampled accesses (SSU) or squared change (SCAR) that a priority save took.
Changes are against the run of the same seed without losses, with their standard errors over seeds."""


def table(given: RecoveryInputs, at_once: int, rows: Sequence[Row], shape: float = 1.0) -> str:
    """The inputs, one line for each strategy, and a legend."""
    cells = [list(COLUMNS), *([text(row) for text in COLUMNS.values()] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ["  ".join(f"{cell:>{width}}" for cell, width in zip(line, widths, strict=True)) for line in cells]
    losers = f"{at_once} of them together lose" if at_once > 1 else "one of them loses"
    save, rows_save = given.save_seconds, given.row_save_seconds
    cost = f"O_save = {save:g} s" + f", O_rows = {rows_save:g} s" * (save != rows_save)
    return "\n".join([
        f"A job of T_total = {given.total_seconds / HOUR:g} h with {given.servers} embedding PSs: {losers} memory every"
        f" T_fail = {given.mtbf_seconds / HOUR:g} h, {rows[0]['losses'].mean:g} times a run here"
        + (f", at gamma-distributed intervals of shape {shape:g}." if shape != 1 else "."),
        f"Stated, not measured: {cost}, O_load = {given.load_seconds:g} s, O_res = "
        f"{given.restart_seconds:g} s, target PLS {given.target_pls:g}.",
        "",
        *lines,
        "",
        LEGEND,
    ])  # fmt: skip


def against(vanilla: str, rows: Sequence[Row]) -> str:
    """Lost updates relative to the strategy ``vanilla``, which saves all rows; empty without it, or if it has lost
    none.
    """
    of = {row["strategy"]: (row["updates_lost"].mean, row["large_lost"].mean) for row in rows}
    base = of.pop(vanilla, (0.0, 0.0))
    shares = {
        name: [lost / all_ for lost, all_ in zip(found, base, strict=True)]
        for name, found in of.items()
        if name.startswith("CPR-") and all(base)
    }
    if not shares:
        return ""
    lines = [
        f"  {name}: {found[0]:.2f} of all, {found[1]:.2f} of the large tables'{_worse(*found)}"
        for name, found in shares.items()
    ]
    if max(map(max, shares.values())) > 1:
        lines += [
            "  (Accesses are too even for that: what is selected is nearly a random eighth of the rows, and the others"
            " wait for long.)"
        ]
    return "\n".join([f"updates lost as a share of {vanilla}'s:", *lines])


def _worse(everywhere: float, large: float) -> str:
    """A note if priority is worse than no priority."""
    if everywhere > 1:
        return ", WORSE than saving all rows"
    return ", WORSE there than saving all rows" if large > 1 else ""


def fits(slopes: Mapping[str, Estimate]) -> str:
    """The slopes of the fitted lines, in words."""
    names = {"pls": "PLS (strategies that save all rows)", "updates_lost": "updates lost"}
    found = {names[key]: slope for key, slope in slopes.items() if not math.isnan(slope.mean)}
    lines = [f"  {name}: {_change(slope, 100 / 10, 3, ' %')} for each 0.1" for name, slope in found.items()]
    return "\n".join(["NE against no loss, by a line through 0:", *(lines or ["  no run has lost anything"])])


def _percent(share: float) -> str:
    return f"{100 * share:.2f} %"


def _change(value: Estimate, scale: float, digits: int, unit: str) -> str:
    """A change with its error, if there are at least two seeds."""
    error = "" if math.isnan(value.error) else f" ± {scale * value.error:.{digits}f}"
    return f"{scale * value.mean:+.{digits}f}{error}{unit}"


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
