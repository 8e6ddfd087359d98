"""The results of a study: a table in Markdown and JSON, and an HTML page with pictures."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from jobs.lab.study.grid import Cell, Point, Study
from ssmpi import __version__
from ssmpi.runtime.errors import UserError
from ssmpi.runtime.files import atomic_file
from ssmpi.runtime.files.log import log
from ssmpi.tools.report import columns, figures, page
from ssmpi.tools.report.groups import CASE, Estimate, Group, Row, name_of, row, short
from ssmpi.tools.report.record import read
from ssmpi.trainer.metrics.results import plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

APART = 0.3  # the spread of the marks of one setting, as a share of the distance to the next
Points = np.ndarray  # (points, 3): place, mean, standard error


def write(study: Study, missing: Sequence[Cell]) -> tuple[str, list[Path]]:
    """Write ``results.md``, ``results.json``, ``results.html`` and pictures; returns the text and the files."""
    names = {cell.name for cell in missing}
    groups, rows = rows_of(study, [cell for cell in study.cells if cell.name not in names])
    codes = codes_of(groups)
    text = markdown(study, rows, missing, codes, circumstances(groups))
    files = [study.folder / "results.md", study.folder / "results.json"]
    atomic_file.write(files[0], text)
    body: dict[str, object] = {
        "title": study.options.title,
        **circumstances(groups),
        "rows": [plain(asdict(r)) for r in rows],
    }
    body |= {"missing": [cell.name for cell in missing], "code": codes}
    atomic_file.write(files[1], json.dumps(body, indent=1) + "\n")
    subject = page.PageContent(study.options.title, compared(study), groups, rows)
    about = "Mean and standard error over seeds; marks of different lines are moved apart a little."
    across = page.Drawing("trend", "Across the grid", about, lambda: trend(rows))
    try:
        drawings = [*([across] if len(rows) > 1 else []), *page.drawings(groups)]
        files += page.publish(subject, drawings, study.folder / "results.html")
    except UserError as error:
        log.info("no page: %s", error)
    return text, files


def rows_of(study: Study, cells: Sequence[Cell]) -> tuple[list[Group], list[Row]]:
    """Groups of finished cells that differ only in the seed, and their table rows."""
    groups: dict[str, Group] = {}
    references: dict[str, Point | None] = {}
    for cell in cells:
        key = name_of(cell.labels)
        groups.setdefault(key, Group(cell.labels, [])).records.append(read(Path(cell.config.run.folder)))
        references[key] = cell.reference
    rows = []
    for key, group in groups.items():
        reference = references[key]
        rows.append(row(group, None if reference is None else groups.get(name_of(reference))))
    return list(groups.values()), rows


def codes_of(groups: Sequence[Group]) -> dict[str, list[str]]:
    """The code versions of the cells, the most frequent first, with the folders of those cells."""
    found: dict[str, list[str]] = {}
    for record in (record for group in groups for record in group.records):
        version, commit = record.versions.get("ssmpi", "(version not recorded)"), record.versions.get("commit")
        code = f"ssmpi {version}, commit {commit}" if commit else f"ssmpi {version}, commit not recorded"
        found.setdefault(code, []).append(record.folder.name)
    return dict(sorted(found.items(), key=lambda item: -len(item[1])))


def compared(study: Study) -> str:
    """The sentence that names the reference: the axes in which it may differ from the cell compared with it."""
    found = {name_of(cell.reference): None for cell in study.cells if cell.reference}
    if not found:
        return ""
    which = (
        next(iter(found)) if len(found) == 1 else "the cell that is alike but for the reference's: " + "; ".join(found)
    )
    return f"Relative NE: against {which}; below 0 is better."


def circumstances(groups: Sequence[Group]) -> dict[str, str]:
    """When and on what processors the cells ran, as they recorded it; the version that made the table."""
    found = [record.circumstances for group in groups for record in group.records]
    days = sorted({around["started"][:10] for around in found if "started" in around})
    processors = dict.fromkeys(around.get("processor", "processor not recorded") for around in found)
    date = " to ".join(dict.fromkeys((days[0], days[-1]))) if days else "date not recorded"
    return {"date": date, "machine": "; ".join(processors), "version": __version__}


def markdown(
    study: Study,
    rows: Sequence[Row],
    missing: Sequence[Cell],
    codes: Mapping[str, Sequence[str]],
    about: Mapping[str, str],
) -> str:
    """The result table, with notes on how to read it; ``about`` are the cells' ``circumstances``."""
    data = study.cells[0].config.data.folder
    most, *others = codes
    lines = [
        f"## {study.options.title}",
        "",
        f"`python -m jobs.lab study {study.path}`, {about['date']}, {about['machine']}, {most}, data `{data}`.",
        f"Mean ± standard error over seeds. {compared(study)}".rstrip(),
        "ELP: batch size x threads x trainers. Gap: iterations between two rounds, of a worker thread and of a whole "
        "trainer.",
        "",
        columns.markdown(rows),
        "",
    ]
    if others:
        named = "; ".join(f"with {code}: {', '.join(codes[code])}" for code in others)
        lines += [f"**Not all cells ran with the same code**, so a difference may be the code's: {named}.", ""]
    if missing:
        lines += [f"Not finished, so not in the table: {'; '.join(cell.name for cell in missing)}.", ""]
    return "\n".join(lines)


def trend(rows: Sequence[Row]) -> Figure:
    """Three panels along ``axis_of(rows)``, a line for each combination of the other labels."""
    along = axis_of(rows)
    values = list(dict.fromkeys(row.labels[along] for row in rows))
    values = sorted(values) if all(_is_number(value) for value in values) else values
    lines: dict[str, list[Row]] = {}
    for each in rows:
        lines.setdefault(name_of({n: v for n, v in each.labels.items() if n != along}), []).append(each)
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
