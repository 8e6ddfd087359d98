"""The final table: one line a group of runs, as text cells that Markdown and HTML share."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from ssmpi.tools.report.groups import Estimate, Row, short

NOTHING = "-"


def number(value: Estimate, digits: int) -> str:
    """``0.80123 ± 0.00045``; without the error if there is only one value."""
    if not math.isfinite(value.mean):
        return NOTHING
    error = f" ± {value.error:,.{digits}f}" if math.isfinite(value.error) else ""
    return f"{value.mean:,.{digits}f}{error}"


def percent(value: Estimate | None) -> str:
    """``+0.123 ± 0.045 %``."""
    if value is None or not math.isfinite(value.mean):
        return NOTHING
    error = f" ± {100 * value.error:.3f}" if math.isfinite(value.error) else ""
    return f"{100 * value.mean:+.3f}{error} %"


def _runs(row: Row) -> str:
    return str(row.runs) if row.complete == row.runs else f"{row.complete} of {row.runs}"


COLUMNS: dict[str, Callable[[Row], str]] = {
    "ELP": lambda row: f"{row.elp:,}" if row.elp else NOTHING,
    "runs": _runs,
    "NE": lambda row: number(row.ne, 5),
    "relative NE": lambda row: "reference" if row.is_reference else percent(row.relative_ne),
    "AUC": lambda row: number(row.auc, 5),
    "EPS": lambda row: number(row.eps, 0),
    "gap, thread": lambda row: number(row.gap_thread, 1),
    "gap, trainer": lambda row: number(row.gap_trainer, 1),
    "validation NE, best": lambda row: number(row.best, 5),
    "validation NE, last": lambda row: number(row.last, 5),
}
WHERE_KNOWN = ("validation NE, best", "validation NE, last")  # left out where no run was evaluated while training


def shown(rows: Sequence[Row]) -> list[str]:
    """The columns that these rows have."""
    return [name for name, text in COLUMNS.items() if name not in WHERE_KNOWN or any(text(r) != NOTHING for r in rows)]


def headings(rows: Sequence[Row]) -> list[str]:
    """Labels first, then the columns."""
    return [short(name) for name in rows[0].labels] + shown(rows)


def cells(row: Row, columns: Sequence[str]) -> list[str]:
    """One line's texts: labels, then these columns."""
    labels = [NOTHING if value is None else str(value) for value in row.labels.values()]
    return labels + [COLUMNS[name](row) for name in columns]


def markdown(rows: Sequence[Row]) -> str:
    """The table in Markdown, aligned so that it reads as text too; numbers to the right."""
    lines = [headings(rows), *(cells(row, shown(rows)) for row in rows)]
    widths = [max(len(text) for text in column) for column in zip(*lines, strict=True)]
    first = len(rows[0].labels)

    def line(texts: Sequence[str]) -> str:
        padded = (t.ljust(w) if i < first else t.rjust(w) for i, (t, w) in enumerate(zip(texts, widths, strict=True)))
        return f"| {' | '.join(padded)} |"

    rule = [("-" * w if i < first else "-" * (w - 1) + ":") for i, w in enumerate(widths)]
    return "\n".join([line(lines[0]), f"| {' | '.join(rule)} |", *(line(texts) for texts in lines[1:])])
