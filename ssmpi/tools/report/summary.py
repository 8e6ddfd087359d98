"""One run's result as text, beside reference points: what ``ssmpi summary`` prints; its traffic."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

from ssmpi.data.schema import read_manifest
from ssmpi.runtime.errors import DataError
from ssmpi.runtime.files import result_marker
from ssmpi.runtime.files.result_marker import COMPLETE
from ssmpi.runtime.files.run_files import RESULT_NAME
from ssmpi.runtime.traffic import LINKS, ROWS, Link
from ssmpi.runtime.words import counted
from ssmpi.tools.report.record import FINAL_SPLITS, Record, read, read_json
from ssmpi.trainer.metrics.fields import EPS_BY_TRAINER, STEPS_BY_TRAINER, keys_of, why_undefined
from ssmpi.trainer.metrics.results import PROGRESSIVE

REFERENCES = "--baseline takes what 'ssmpi-prepare baseline --output' wrote, --teacher the teacher.json of 'synthesize'"
SHOWN_AHEAD = {"ne": "NE", "log_loss": "log-loss", "auc": "AUC", "calibration": "calibration"}
SHOWN_TRAINERS = 8
COLUMNS = ("ne", "log_loss", "auc", "accuracy")
TRAFFIC_HEADINGS = (*(f"{link.replace('_', ' ')}, MB" for link in LINKS), "bytes an example", "rows in place")


def table(run: Path, baseline: Path | None, teacher: Path | None) -> str:
    """The result of a run on its test split, beside reference points if they are given; DataError if those are of other
    rows. Of a run without a result, how far it has come, and how to resume it; DataError if it has not trained.
    """
    record = read(run)
    result, (split, metrics) = record.result, record.final
    ahead = result.get("evaluations", {}).get(PROGRESSIVE)
    if not metrics and (not ahead or baseline or teacher):
        if not record.windows or baseline or teacher or result_marker.damage(record.folder):
            raise DataError(f"{run}: {_without_result(record)}")
        return "\n".join([*_so_far(record), *_trainers(record), _without_result(record)])
    evaluations, kept = result["evaluations"], record.kept
    both = bool(metrics) and kept == "best" and _differ(evaluations[split])
    lines = (
        _scores(record, baseline, teacher, both=both) if metrics else ["the data has no rows to be scored at the end"]
    )
    gap = f", sync gap {result['sync_gap_thread']:.1f} iterations of a thread" if "sync_gap_thread" in result else ""
    ended = f", ended by {record.ended_by}" if record.ended_by else ""
    lines.append(f"{record.status}{ended}: {result['examples']:,.0f} examples at {record.number('eps'):,.0f} EPS{gap}")
    lines += _trainers(record)
    if ahead:
        lines.append(_ahead(ahead["whole"]))
    lines += [keys_of(feature, counts) for feature, counts in result.get("keys", {}).items()]
    others = [name for name, found in evaluations.items() if _differ(found) and not (both and name == split)]
    lines += [_best_and_last(record, name) for name in others]
    if "round_seconds" in result:
        apart = result.get("divergence")
        far = "" if apart is None else f", replicas {apart:.2%} from their reference"
        lines.append(
            f"rounds: {result['rounds']:,.0f}, each {1000 * result['round_seconds']:.1f} ms or "
            f"{result['staleness']:.1f} iterations of a trainer{far}"
        )
    sent = traffic_in_words(result)
    return "\n".join([*lines, sent] if sent else lines)


def _scores(record: Record, baseline: Path | None, teacher: Path | None, *, both: bool) -> list[str]:
    """A table of the final split's metrics, beside reference points; of ``both`` models, the best and the last."""
    split, metrics = record.final
    rows = [("this run", metrics)]
    if both:
        rows = [("this run, last", record.result["evaluations"][split]["last"]), ("this run, best (kept)", metrics)]
    if baseline:
        names, of = ["constant", "logistic_regression"], read_json(baseline)
        names += ["boosted_trees"] * (isinstance(of, dict) and "boosted_trees" in of)  # older files have none
        rows = [(name.replace("_", " "), _reference(baseline, name)) for name in names] + rows
        _check_rows(baseline, of.get("split", split), of.get("rows"), split, metrics)
    if teacher:
        ceiling = _reference(teacher, "ranges", split)
        _check_rows(teacher, split, ceiling.get("rows"), split, metrics)
        rows.append(("teacher (the ceiling)", ceiling))
    width = max(len(name) for name, _ in rows)
    lines = [
        f"{split}: {counted(round(metrics.get('rows', 0)), 'row')}",
        f"{'':{width}}  " + "".join(f"{c:>10}" for c in COLUMNS),
    ]
    for name, found in rows:
        lines.append(f"{name:{width}}  " + "".join(_cell(found.get(column)) for column in COLUMNS))
    if reason := why_undefined(metrics):
        lines.append(reason)
    return lines


def _so_far(record: Record) -> list[str]:
    """How far a run has come that was not evaluated at its end."""
    last, expected = record.windows[-1], expected_examples(record)
    of = f" of {expected:,.0f} ({last['examples'] / expected:.1%})" if expected else ""
    eps = last["examples"] / last["seconds"] if last["seconds"] else 0.0
    lines = [f"{record.status}: {last['examples']:,}{of} examples in {last['seconds']:,.0f} s, {eps:,.0f} EPS"]
    scores = ", ".join(f"{text} {_cell(last.get(name)).strip()}" for name, text in SHOWN_AHEAD.items())
    return [*lines, f"last window of training: {scores}"]


def expected_examples(record: Record) -> float:
    """The examples of the whole run; 0 if neither its result nor its data says."""
    if "expected_examples" in record.result:
        return float(record.result["expected_examples"])
    settings = record.settings
    try:
        rows = read_manifest(Path(settings["data.folder"])).split(settings["data.train_split"]).rows
        return float(rows * settings["data.passes"])
    except (KeyError, TypeError, DataError):  # it only adds to what is shown
        return 0.0


def _trainers(record: Record) -> list[str]:
    """Examples and steps a second of each trainer, of many the slowest ones; nothing for a single one."""
    eps, steps = (record.by_trainer(name) for name in (EPS_BY_TRAINER, STEPS_BY_TRAINER))
    if len(eps) < 2 or len(steps) != len(eps):
        return []
    slowest = sorted(range(len(eps)), key=lambda trainer: eps[trainer])[:SHOWN_TRAINERS]
    shown = "; ".join(f"{k}: {eps[k]:,.0f} EPS, {steps[k]:,.1f} steps/s" for k in sorted(slowest))
    which = f"the {SHOWN_TRAINERS} slowest of {len(eps)} trainers" if len(eps) > SHOWN_TRAINERS else "trainers"
    return [f"{which} (median {median(eps):,.0f} EPS): {shown}"]


def _without_result(record: Record) -> str:
    """Why there is nothing to show, what is known, and what to do."""
    missing = [sentence for sentence in record.missing if RESULT_NAME in sentence]
    why = (
        missing[0] if missing else f"it ended ({record.status}) before it was evaluated on {' or '.join(FINAL_SPLITS)}"
    )
    scored = "".join(
        f". {line.get('split')} NE {_cell(line.get('ne')).strip()} after {line['examples']:,} examples"
        for line in record.evaluations[-1:]
    )
    more = f"If no job is running it, 'ssmpi launch --resume {record.folder}' resumes it"
    if result_marker.damage(record.folder):
        more = "Restore an intact copy"
    if record.status == COMPLETE:
        more = f"'ssmpi evaluate {record.folder}' scores its model"
    return f"{why}{scored}. {more}"


def _differ(found: dict[str, Any]) -> bool:
    """Whether the best evaluation of a split was not the last one."""
    best, last = (found.get(name, {}).get("after_examples") for name in ("best", "last"))
    return best is not None and best != last


def _ahead(whole: Mapping[str, Any]) -> str:
    """What rows scored before the model was trained on them."""
    scores = ", ".join(f"{text} {_cell(whole[name]).strip()}" for name, text in SHOWN_AHEAD.items())
    return f"before training on them ({counted(round(whole['parts']), 'part')}, {whole['rows']:,.0f} rows): {scores}"


def _best_and_last(record: Record, split: str) -> str:
    found, metric = record.result["evaluations"][split], record.settings.get("evaluate.metric", "ne")
    best, last = (
        f"{_cell(found[name][metric]).strip()} after {found[name]['after_examples']:,.0f} examples"
        for name in ("best", "last")
    )
    return f"{split} {SHOWN_AHEAD[metric]}: best {best}, last {last}; the {record.kept} model was kept"


def _reference(path: Path, *keys: str) -> dict[str, float]:
    """The metrics that a JSON file holds under ``keys``; DataError if it is another kind of file."""
    found = read_json(path)
    for key in keys:
        if not isinstance(found, dict) or key not in found:
            raise DataError(f"{path}: has no '{key}': the wrong kind of file for this option; {REFERENCES}")
        found = found[key]
    if not isinstance(found, dict):
        raise DataError(f"{path}: '{keys[-1]}' holds no metrics: the wrong kind of file for this option; {REFERENCES}")
    return found


def _check_rows(path: Path, of: str, rows: Any, split: str, metrics: Mapping[str, Any]) -> None:
    """Raise DataError if a reference is ``of`` another split, or of another number of rows, than the run's metrics.
    ``rows`` is the number, or where they begin and end; older files do not say.
    """
    match rows:
        case [int(first), int(end)]:
            rows = end - first
    own = metrics.get("rows")
    if of != split or (isinstance(rows, int) and own is not None and rows != own):
        raise DataError(
            f"{path}: scores {rows} rows of {of}, and this run {own or 0:.0f} of {split}: they are of different data"
        )


def _cell(value: float | None) -> str:
    return f"{value:>10.5f}" if isinstance(value, float) else f"{'-':>10}"


def traffic_cells(result: Mapping[str, Any]) -> list[str]:
    """Under ``TRAFFIC_HEADINGS``, from ``result.json``; none where a run did not count."""
    found, examples = result.get("bytes"), result.get("examples")
    if not isinstance(found, dict) or not examples:
        return []
    found = {Link.GROUP.name.lower(): 0.0, **found}  # older runs had no groups
    if not all(name in found for name in (*LINKS, ROWS)):
        return []
    sizes = [found[link] for link in LINKS]
    return [*map(megabytes, sizes), f"{sum(sizes) / examples:,.1f}", f"{found[ROWS]:,.0f}"]


def traffic_in_words(result: Mapping[str, Any]) -> str:
    """The traffic of all trainers in words; empty if a run did not count it."""
    texts = traffic_cells(result)
    if not texts:
        return ""
    parts = [f"{link.replace('_', ' ')} {text}" for link, text in zip(LINKS, texts, strict=False) if text != "0"]
    sent = f"sent: {', '.join(parts)} MB; {texts[-2]} bytes an example" if parts else "sent: nothing"
    if isinstance(result.get("density"), float):
        sent += f"; {result['density']:.2%} of the entries pushed"
    return f"{sent}; {texts[-1]} rows in place" if texts[-1] != "0" else sent


def megabytes(size: float) -> str:
    """``12,345.7``, and of what is less than one three digits."""
    return f"{size / 1e6:,.1f}" if size >= 1e6 else f"{size / 1e6:.3g}"
