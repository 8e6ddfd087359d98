"""``ssmpi report``: one HTML page that needs nothing beside it, and its pictures as PNG files too."""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from ssmpi import __version__
from ssmpi.runtime.errors import UserError
from ssmpi.runtime.files import atomic_file
from ssmpi.runtime.files.result_marker import COMPLETE
from ssmpi.tools.report import figures
from ssmpi.tools.report.columns import NOTHING, cells, headings, shown
from ssmpi.tools.report.groups import NOT_SETTINGS, SEED, Group, Row, by_settings, differing, row, scored_unlike
from ssmpi.tools.report.record import CIRCUMSTANCES, Record
from ssmpi.tools.report.summary import TRAFFIC_HEADINGS, traffic_cells
from ssmpi.trainer.metrics.fields import EPS_BY_TRAINER, STEPS_BY_TRAINER

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ONLY_SECONDS = 120.0  # shorter times are given in seconds
TEMPLATE = Path(__file__).with_name("page.html.jinja")


@dataclass(frozen=True)
class Drawing:
    """A figure that can be drawn in any style. ``name`` goes into the file name; ``text`` is its caption."""

    name: str
    title: str
    text: str
    draw: Callable[[], Figure]


@dataclass(frozen=True)
class PageContent:
    """The contents of a page. ``compared`` is the sentence that names the reference; empty without one."""

    title: str
    compared: str
    groups: Sequence[Group]
    rows: Sequence[Row]


def write(records: Sequence[Record], out: Path) -> list[Path]:
    """Write the report of some runs, the first being what the others are compared with; returns the files written."""
    groups = by_settings(records)
    several = len(groups) > 1
    title = "Runs compared" if several else f"{groups[0].name}: runs that differ in their seed"
    title = title if len(records) > 1 else f"Run {groups[0].name}"
    compared = f"Relative NE: against {groups[0].name}; below 0 is better." if several else ""
    rows = [row(group, groups[0] if several else None, final_split(records)) for group in groups]
    return publish(PageContent(title, compared, groups, rows), drawings(groups), out)


def final_split(records: Sequence[Record]) -> str:
    """The split that the final table is about: of the first complete run that was scored, else of any run."""
    complete_first = sorted(records, key=lambda record: record.status != COMPLETE)
    return next((record.final[0] for record in complete_first if record.final[0]), "")


def publish(subject: PageContent, wanted: Sequence[Drawing], out: Path) -> list[Path]:
    """Write a page with some drawings, and each drawing as ``OUT-name.png``; returns the files written."""
    try:
        import jinja2
    except ImportError:
        raise UserError(f"jinja2 is not installed: {figures.INSTALL}") from None
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{out.parent}: cannot be made ({error.strerror}); name another file with --output") from error
    atomic_file.check(out)
    atomic_file.check_replaceable(out, re.compile(rb"<!DOCTYPE html>.*<title>ssmpi report: ", re.DOTALL))
    for drawing in wanted if not out.exists() else ():  # no earlier report has made those that are there
        atomic_file.check_replaceable(_png(drawing, out), re.compile(rb"(?!)"))
    pictures = [_draw(drawing, out) for drawing in wanted]
    records = [record for group in subject.groups for record in group.records]
    settings = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    page = settings.from_string(TEMPLATE.read_text(encoding="utf-8")).render(
        title=subject.title, compared=subject.compared, records=records, pictures=pictures,
        headings=headings(subject.rows), rows=[cells(r, shown(subject.rows)) for r in subject.rows],
        split=final_split(records), unlike=scored_unlike(records),
        settings=_settings(records), broken=[record for record in records if record.missing],
        runs=[_run(record) for record in records], links=TRAFFIC_HEADINGS,
        traffic=[(record.folder, found) for record in records if (found := traffic_cells(record.result))],
        validations=[(record.folder, _validations(record)) for record in records if record.evaluations],
        ranks=[(record.folder, _ranks(record)) for record in records if record.usage],
        recoveries=[(record.folder, _recoveries(record)) for record in records if record.recoveries],
        version=__version__, made=f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
    )  # fmt: skip
    atomic_file.write(out, page)
    return [out, *(_png(drawing, out) for drawing in wanted)]


def drawings(groups: Sequence[Group]) -> list[Drawing]:
    """Every figure for which these runs have data."""
    records = [record for group in groups for record in group.records]
    found = []
    if any(record.windows for record in records):
        text = "Lines: training, each window scored before its update. Circles: validation; diamonds: test."
        found.append(Drawing("curves", "Learning curves", text, lambda: figures.curves(groups, figures.CURVES)))
        text = (
            "Examples per second are those of all trainers; the gap counts a worker thread's iterations between two"
            " rounds."
        )
        speed = figures.recorded(groups, figures.SPEED)
        found.append(Drawing("speed", "Speed and synchronization", text, lambda: figures.curves(groups, speed)))
    if any(record.usage for record in records):
        text = (
            "Seconds on a processor, waiting left out; of a resumed run, its last job. Set-up does not grow with the"
            " data. The main thread of a server serves."
        )
        found.append(Drawing("time", "Where the time went", text, lambda: figures.times(groups)))
    return found


def _png(drawing: Drawing, out: Path) -> Path:
    return out.with_name(f"{out.stem}-{drawing.name}.png")


def _draw(drawing: Drawing, out: Path) -> dict[str, str]:
    """The drawing as SVG in base64 for the light and the dark page, and as a PNG file."""
    found = {"title": drawing.title, "text": drawing.text}
    for page, style in (("light", figures.LIGHT), ("dark", figures.DARK)):
        with figures.style(style):
            figure = drawing.draw()
            found[page] = base64.b64encode(figures.render(figure, "svg")).decode()
            if page == "light":
                atomic_file.write(_png(drawing, out), figures.render(figure, "png"))
    return found


def _settings(records: Sequence[Record]) -> list[list[object]]:
    """Settings and versions that differ, as a table with headings, transposed so that its longer side goes down."""
    names = [name for name in differing(records) if name == SEED or name not in NOT_SETTINGS]
    columns: list[list[object]] = [["run", *(str(record.folder) for record in records)]]
    columns += [[name, *(record.settings.get(name, NOTHING) for record in records)] for name in names]
    for name in dict.fromkeys(name for record in records for name in record.versions):
        values = [record.versions.get(name, NOTHING) for record in records]
        if len({value for value in values if value != NOTHING}) > 1:
            columns.append([f"version of {name}", *values])
    if len(columns) == 1:
        return []
    return columns if len(columns) > len(records) + 1 else [list(line) for line in zip(*columns, strict=True)]


def _run(record: Record) -> list[str]:
    """Where, when and with what a run was made: a line of the table of runs."""
    around = [record.circumstances.get(name, NOTHING) for name in CIRCUMSTANCES]
    around[-1] = around[-1].replace("T", " ").removesuffix("+00:00")
    training = record.number("seconds")
    versions = ", ".join(f"{name} {version}" for name, version in record.versions.items())
    how = record.status + (f" ({record.ended_by})" if record.ended_by else "")
    return [str(record.folder), *around, lasting(record.duration), lasting(training), how, versions or NOTHING]


def _validations(record: Record) -> list[list[str]]:
    """One line an evaluation of the model: where in the run it was made, what it found, and what is special
    about it.
    """
    lines = []
    for line in record.evaluations:
        split, kept = str(line.get("split", "")), record.result.get("evaluations", {}).get(line.get("split"), {})
        marks = [n for n in ("best", "last") if kept.get(n, {}).get("after_examples") == line.get("examples")]
        if record.result.get("kept") in marks:
            marks.append("kept")
        found = [_decimal(line.get(name)) for name in ("ne", "log_loss", "auc", "accuracy", "calibration")]
        place = f"{line['examples']:,}" if isinstance(line.get("examples"), int) else NOTHING
        seconds = line.get("seconds")
        when = lasting(seconds if isinstance(seconds, (int, float)) else math.nan)
        lines.append([split, place, when, *found, ", ".join(marks)])
    return lines


def _recoveries(record: Record) -> list[list[str]]:
    """One line per recovery: where in the run, what was lost, how it resumed, and at what cost."""
    lines = []
    for each in record.recoveries:
        examples, lost, pls = each.get("examples"), each.get("lost") or "nobody's", each.get("pls")
        counts = [each.get(name, 0) for name in ("batches_repeated", "rows_reloaded", "samples_lost")]
        place = f"{examples:,}" if isinstance(examples, int) else "did not come to training"
        share = f"{pls:.3g}" if isinstance(pls, (int, float)) else NOTHING
        taken = ", ".join(f"{name} {value:g} s" for name, value in each.get("seconds", {}).items())
        lines.append([place, str(each.get("how", "")), str(lost), *(f"{n:,}" for n in counts), share, taken])
    return lines


def _decimal(value: object) -> str:
    return f"{value:.5f}" if isinstance(value, (int, float)) else NOTHING


def lasting(seconds: float) -> str:
    """``24 s``, ``12.3 min``."""
    if not math.isfinite(seconds):
        return NOTHING
    return f"{seconds / 60:,.1f} min" if seconds >= ONLY_SECONDS else f"{seconds:.0f} s"


def _ranks(record: Record) -> list[list[str]]:
    """One line a rank and kind of thread: seconds on a processor and waiting, the rank's peak memory, and what the
    workers of a trainer have done a second.
    """
    lines = []
    eps, steps = (record.by_trainer(name) for name in (EPS_BY_TRAINER, STEPS_BY_TRAINER))
    for rank in record.usage:
        for kind, spent in rank["threads"].items():
            busy, wall = spent["cpu_seconds"], spent["wall_seconds"]
            share = f"{busy / wall:.0%}" if wall else NOTHING
            name = f"{rank['role']} {rank['index']}".replace("_ps", " PS")
            times = [f"{busy:,.1f}", f"{max(wall - busy, 0):,.1f}", share]
            rates = [NOTHING, NOTHING]
            if rank["role"] == "trainer" and kind == "worker" and rank["index"] < min(len(eps), len(steps)):
                rates = [f"{eps[rank['index']]:,.0f}", f"{steps[rank['index']]:,.1f}"]
            lines.append([name, kind, *times, *rates, f"{rank['peak_memory_bytes'] / 1e6:,.0f}"])
    return lines
