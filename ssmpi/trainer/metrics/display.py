"""What a person sees of training: a progress bar, metrics in words."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from tqdm import tqdm

from ssmpi.model.estimates import DENSITY, WANTED
from ssmpi.runtime.files.log import shape, terminal
from ssmpi.runtime.words import counted


def bar(rows: int, earlier: int) -> Any:
    """A progress bar over ``rows`` examples, of which ``earlier`` were trained on before this job and do not count in
    its rate; disabled without a terminal.
    """
    there = terminal()
    if there is None:
        return tqdm(total=rows, initial=earlier, disable=True)
    columns, lines = shape(there)
    found = tqdm(total=rows, initial=earlier, unit="ex", unit_scale=True, ncols=columns, nrows=lines, file=there)
    found.dynamic_ncols = shape  # asked before each drawing; tqdm's own takes 0 rows for no room
    return found


def keys_of(feature: str, counts: Mapping[str, int]) -> str:
    """What the dynamic table of a feature holds, in one line."""
    refused = f", {counts['refused']:,} lookups refused" if counts["refused"] else ""
    room = f" (memory for {counts['room']:,})" if "room" in counts else ""  # older ones had it all
    return (
        f"{feature}: {counts['keys']:,} of at most {counts['rows']:,} keys{room}: {counts['admitted']:,} admitted,"
        f" {counts['expired']:,} expired, {counts['evicted']:,} evicted{refused}"
    )


def describe(metrics: dict[str, float]) -> str:
    """Metrics in one line."""
    passed = "".join(
        f", {name.removeprefix(DENSITY)} passes {value:.2%} ({metrics[name.replace(DENSITY, WANTED)]:.2%} wanted)"
        for name, value in metrics.items()
        if name.startswith(DENSITY)
    )
    by_group = f", GAUC {metrics['gauc']:.5f} (of {metrics['gauc_share']:.1%} of the rows)" if "gauc" in metrics else ""
    why = f"; {reason}" if (reason := why_undefined(metrics)) else ""
    return (
        f"NE {metrics['ne']:.5f}, log-loss {metrics['log_loss']:.5f}, AUC {metrics['auc']:.5f}"
        f" (+-{metrics['auc_error']:.1e}), accuracy {metrics['accuracy']:.4f}, calibration"
        f" {metrics['calibration']:.4f}, {counted(int(metrics['rows']), 'row')}{by_group}{passed}{why}"
    )


def why_undefined(metrics: Mapping[str, float | None]) -> str:
    """Why NE and AUC are not numbers, NaN or in a file null, although the log-loss is one; else empty."""
    log_loss, ne = metrics.get("log_loss"), metrics.get("ne")
    if log_loss is None or math.isnan(log_loss) or not (ne is None or math.isnan(ne)):
        return ""
    return "all labels of these rows are equal, so NE and AUC are not defined: score rows with both labels"
