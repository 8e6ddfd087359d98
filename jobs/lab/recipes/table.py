"""What the records say: means of each side, and differences by pairs of seeds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

from jobs.lab.lockstep.equivalence import Comparison, judge
from jobs.lab.options import RECIPE_SIDES
from jobs.lab.recipes.runs import OURS

MARGIN, LEVEL = 0.0005, 0.05  # of the AUC, and of the tests

Record = dict[str, Any]


def jump(record: Record) -> float | None:
    """AUC of validation rows after the first pass at cut rates, less the best before; None if there is no such pass."""
    aucs, rates = ([one[name] for one in record["passes"]] for name in ("auc", "rate"))
    cut = next((k for k, rate in enumerate(rates) if rate < rates[0]), None)
    return None if cut is None else aucs[cut] - max(aucs[:cut])


def mean_of(values: Sequence[float]) -> str:
    """Their mean, and its standard error if there are several."""
    if len(values) < 2:
        return f"{values[0]:.5f}" if values else "-"
    return f"{statistics.fmean(values):.5f} ± {statistics.stdev(values) / math.sqrt(len(values)):.5f}"


def side_line(name: str, runs: Sequence[Record]) -> str:
    """A line of the table of sides."""
    jumps = [value for value in map(jump, runs) if value is not None]
    seconds = statistics.fmean(one["seconds"] for run in runs for one in run["passes"])
    cpu = statistics.fmean(run["cpu_seconds"] / len(run["passes"]) for run in runs)
    count = statistics.fmean(len(run["passes"]) for run in runs)
    first, best = [run["passes"][0]["auc"] for run in runs], [max(p["auc"] for p in run["passes"]) for run in runs]
    quality = " | ".join(map(mean_of, (first, jumps, best, [run["test"]["auc"] for run in runs])))
    loss = mean_of([run["test"]["log_loss"] for run in runs])
    return f"| {name} | {len(runs)} | {quality} | {loss} | {count:.1f} | {seconds / 60:.2f} | {cpu / 60:.2f} |"


def pairs_of(runs: Sequence[Record], side: str) -> list[tuple[Record, Record]]:
    """Runs of a side, and ssmpi's of the same seeds."""
    ours = {run["seed"]: run for run in runs if run["side"] == OURS}
    return [(run, ours[run["seed"]]) for run in runs if run["side"] == side and run["seed"] in ours]


def differences(pairs: Sequence[tuple[Record, Record]], place: int | None) -> list[float]:
    """AUC of the other side less ours, so that above 0 ours is worse: of test rows, or of validation rows after pass
    ``place``, where both have it.
    """
    if place is None:
        return [other["test"]["auc"] - ours["test"]["auc"] for other, ours in pairs]
    both = [(other["passes"], ours["passes"]) for other, ours in pairs]
    return [a[place]["auc"] - b[place]["auc"] for a, b in both if place < min(len(a), len(b))]


def pair_lines(name: str, side: str, runs: Sequence[Record]) -> list[str]:
    """Differences from a side: of test rows with the verdict, and after each pass."""
    pairs = pairs_of(runs, side)
    if len(pairs) < 2:
        return []
    found = differences(pairs, None)
    (verdict,) = judge([Comparison(family=name, name=side, differences=tuple(found))], MARGIN, LEVEL)
    by_pass = [differences(pairs, place) for place in range(max(len(ours["passes"]) for _, ours in pairs))]
    each = ", ".join(f"{-statistics.fmean(some):+.5f}" for some in by_pass if len(some) == len(pairs))
    error = mean_of(found).partition("± ")[2]
    return [
        f"| {name} | {side} | {len(pairs)} | {-verdict.mean:+.5f} ± {error} | {verdict.p_equal:.2g} | "
        f"{verdict.p_different:.2g} | {verdict.text} | {each} |"
    ]


def table(runs: Sequence[Record]) -> str:
    """Both tables in Markdown, of records with one recipe for each data set."""
    sides = ["| data, side | runs | AUC, pass 1 | jump | best | test AUC | test log-loss | passes | min | CPU min |"]
    sides.append("|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|")
    pairs = ["| data | ssmpi less | pairs | test AUC | p equal | p different | decided | after each pass |"]
    pairs.append("|---|---|---:|---:|---:|---:|---|---|")
    for name in dict.fromkeys(run["data"] for run in runs):
        some = [run for run in runs if run["data"] == name]
        for side in RECIPE_SIDES:
            if own := [run for run in some if run["side"] == side]:
                sides.append(side_line(f"{name}, {side}", own))
            pairs += pair_lines(name, side, some) if side != OURS else []
    return "\n".join([*sides, "", *pairs])
