"""One run's result as text, beside reference points: what ``ssmpi summary`` prints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ssmpi.core.errors import DataError
from ssmpi.core.run_files import RESULT_NAME
from ssmpi.report.record import FINAL_SPLITS, kept, read_json

COLUMNS = ("ne", "log_loss", "auc", "accuracy")


def table(run: Path, baseline: Path | None, teacher: Path | None) -> str:
    """The result of a run on its test split, beside reference points where they are given."""
    if not (run / RESULT_NAME).is_file():
        raise DataError(f"{run}: no {RESULT_NAME}, so this run has not ended; its logs say why")
    result = read_json(run / RESULT_NAME)
    evaluations = result["evaluations"]
    split = next((s for s in FINAL_SPLITS if s in evaluations), None)
    if split is None:
        raise DataError(f"{run}: this run ended ({result['status']}) before it was evaluated")
    rows = [("this run", evaluations[split][kept(result)])]
    both = kept(result) == "best" and _differ(evaluations[split])
    if both:
        rows = [("this run, last", evaluations[split]["last"]), ("this run, best (kept)", rows[0][1])]
    if baseline:
        names = ("constant", "logistic_regression")
        rows = [(name.replace("_", " "), _reference(baseline, name)) for name in names] + rows
    if teacher:
        rows.append(("teacher (the ceiling)", _reference(teacher, "ranges", split)))
    width = max(len(name) for name, _ in rows)
    examples = int(evaluations[split]["last"]["rows"])
    lines = [f"{split}: {examples:,} rows", f"{'':{width}}  " + "".join(f"{c:>10}" for c in COLUMNS)]
    for name, metrics in rows:
        lines.append(f"{name:{width}}  " + "".join(_cell(metrics.get(column)) for column in COLUMNS))
    gap = f", sync gap {result['sync_gap_thread']:.1f} iterations of a thread" if "sync_gap_thread" in result else ""
    early = result.get("ended_by", "passes")
    ended = "" if early == "passes" else f", ended by evaluate.{early}"
    lines.append(f"{result['status']}{ended}: {result['examples']:,.0f} examples at {result['eps']:,.0f} EPS{gap}")
    others = [name for name, found in evaluations.items() if _differ(found) and not (both and name == split)]
    lines += [_best_and_last(name, evaluations[name], kept(result)) for name in others]
    if "round_seconds" in result:
        far = f", replicas {result['divergence']:.2%} from their reference" if "divergence" in result else ""
        lines.append(
            f"rounds: {result['rounds']:,.0f} of {1000 * result['round_seconds']:.1f} ms, in which a trainer makes "
            f"{result['staleness']:.1f} iterations{far}"
        )
    return "\n".join(lines)


def _differ(found: dict[str, Any]) -> bool:
    """Whether the best evaluation of a split was not the last one."""
    best, last = (found.get(name, {}).get("after_examples") for name in ("best", "last"))
    return best is not None and best != last


def _best_and_last(split: str, found: dict[str, Any], which: str) -> str:
    best, last = (
        f"{_cell(found[name]['ne']).strip()} after {found[name]['after_examples']:,.0f} examples"
        for name in ("best", "last")
    )
    return f"{split} NE: best {best}, last {last}; the {which} model was kept"


def _reference(path: Path, *keys: str) -> dict[str, float]:
    """The metrics that a JSON file holds under ``keys``; DataError if it is another kind of file."""
    found = read_json(path)
    for key in keys:
        if not isinstance(found, dict) or key not in found:
            raise DataError(f"{path}: has no '{key}': the wrong kind of file for this option")
        found = found[key]
    return found


def _cell(value: float | None) -> str:
    return f"{value:>10.5f}" if isinstance(value, float) else f"{'-':>10}"
