"""Progressive validation (Blum, Kalai, Langford, COLT 1999): every part of the data is scored before it is trained on,
so each figure is of rows that the model has not seen. ``result.json`` has the ``last`` part's and those of the
``whole`` run.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ssmpi.runtime.quality import SUMS, Quality, entropy

NAME = "progressive"  # in place of a split's name
GAUC = "gauc"
ADDED = "rows", "clicks", "predicted_clicks", "rows_of_auc", "rows_of_gauc"
MEANS = {"log_loss": "rows", "accuracy": "rows", "auc": "rows_of_auc", GAUC: "rows_of_gauc"}  # by these rows


def after(
    found: Mapping[str, Any] | None, part: int, quality: Quality, more: Mapping[str, float]
) -> dict[str, dict[str, Any]]:
    """What ``found`` becomes with one more ``part``. AUC and GAUC of the whole run are the mean of the parts', weighted
    by the rows that they are over; everything else is that of all rows.
    """
    sums, own = dict(zip(SUMS, quality.sums.tolist(), strict=True)), quality.compute()
    window = {"rows": sums["examples"], "clicks": sums["positives"], "predicted_clicks": sums["score"], **own, **more}
    window["rows_of_auc"] = 0.0 if math.isnan(own["auc"]) else window["rows"]
    if GAUC in more:
        window["rows_of_gauc"] = window["rows"] * more["gauc_share"]
    before: Mapping[str, Any] = found["whole"] if found else {}
    whole = {name: before.get(name, 0.0) + window[name] for name in ADDED if name in window}
    for name, rows in MEANS.items():
        if rows in window:
            parts = [(each[name], each[rows]) for each in (before, window) if each.get(rows)]
            whole[name] = sum(value * count for value, count in parts) / whole[rows] if parts else math.nan
    rate = whole["clicks"] / whole["rows"]
    whole["ne"] = whole["log_loss"] / entropy(rate) if 0 < rate < 1 else math.nan
    whole["calibration"] = whole["predicted_clicks"] / whole["clicks"] if whole["clicks"] else math.nan
    return {"last": {**window, "part": part}, "whole": {**whole, "parts": before.get("parts", 0) + 1}}


def is_scored(found: Mapping[str, Any] | None, part: int) -> bool:
    """Whether a part has been scored already."""
    return found is not None and int(found["last"]["part"]) >= part
