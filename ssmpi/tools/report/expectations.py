"""A run beside the metric that is expected after each pass: what ``ssmpi summary --expect`` adds."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ssmpi.runtime import settings
from ssmpi.runtime.errors import DataError
from ssmpi.runtime.files.result_marker import COMPLETE
from ssmpi.runtime.quality import improves
from ssmpi.runtime.settings import require, within
from ssmpi.tools.report.record import Record, read
from ssmpi.tools.report.summary import expected_examples

WORSE = "worse"


@dataclass(frozen=True)
class Expectations:
    """A file of expectations: values of ``metric`` on ``split`` after some ``passes``, by their numbers, and where they
    come from. ``final`` is expected at the end, of the model that the run keeps, on ``evaluate.final``.
    """

    source: str
    passes: dict[str, float]
    split: str = "validation"
    metric: Literal["auc", "ne", "log_loss", "accuracy"] = "auc"
    tolerance: float = 0.0005
    final: float | None = None

    def __post_init__(self) -> None:
        within("tolerance", self.tolerance, 0.0, 1.0)
        for number in self.passes:
            require(number.isdecimal() and int(number) > 0, f"passes.{number}: write the number of a pass, from 1")

    def verdict(self, expected: float, value: float) -> str:
        """What a value means."""
        if improves(self.metric, value, expected, self.tolerance):
            return "better"
        return "on course" if abs(value - expected) <= self.tolerance else WORSE


def course(run: Path, file: Path) -> tuple[str, bool]:
    """A table of what a file expects of a run and what the run has scored so far, and whether nothing is worse;
    DataError if there is nothing to compare yet.
    """
    expectations, record = settings.load(Expectations, file, kind="file of expectations"), read(run)
    scored = after_passes(record, expectations.split)
    rows = [(f"pass {number}", value, scored.get(int(number))) for number, value in expectations.passes.items()]
    if expectations.final is not None:
        split, kept = record.final
        ended = record.status == COMPLETE  # else there are scores, but not those of the end
        rows.append((split or "final", expectations.final, kept if ended and kept else None))
    if all(metrics is None for _, _, metrics in rows):
        raise DataError(f"{run}: no evaluation of '{expectations.split}' yet after a pass that {file} names")
    lines = [
        f"expected: {expectations.source}",
        f"{expectations.metric:12}{'expected':>10}{'got':>10}{'difference':>12}",
    ]
    verdicts = set()
    for name, expected, metrics in rows:
        if metrics is None:
            later = "not reached" if record.status == COMPLETE else "not yet"
            lines.append(f"{name:12}{expected:>10.5f}{'-':>10}{'-':>12}  {later}")
            continue
        number = metrics.get(expectations.metric)  # None in the file if it was NaN
        value = math.nan if number is None else float(number)
        verdicts.add(verdict := expectations.verdict(expected, value))
        lines.append(f"{name:12}{expected:>10.5f}{value:>10.5f}{value - expected:>+12.5f}  {verdict}")
    return "\n".join(lines), WORSE not in verdicts


def after_passes(record: Record, split: str) -> Mapping[int, dict[str, Any]]:
    """The evaluations of a split at the ends of passes, by the numbers of these."""
    passes, per_pass = (record.settings.get(name, 1) for name in ("data.passes", "evaluate.per_pass"))
    rows = expected_examples(record) / passes
    if not rows:
        raise DataError(f"{record.folder}: neither its result nor its data says how many examples a pass has")
    found = {}
    for line in record.evaluations:
        number = line["examples"] / rows  # a recovery may have left out a few
        if line.get("split") == split and abs(number - round(number)) * per_pass < 0.5:
            found[round(number)] = line
    return found
