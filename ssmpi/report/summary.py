"""One run's result as text, beside reference points: what ``ssmpi summary`` prints."""

from __future__ import annotations

from pathlib import Path

from ssmpi.errors import DataError
from ssmpi.names import RESULT_NAME
from ssmpi.report.record import FINAL_SPLITS, read_json

COLUMNS = ("ne", "log_loss", "auc", "accuracy")


def table(run: Path, baseline: Path | None, teacher: Path | None) -> str:
    """The result of a run on its test split, beside reference points where they are given."""
    if not (run / RESULT_NAME).is_file():
        raise DataError(f"{run}: no {RESULT_NAME}, so no run that ended here; its log says why")
    result = read_json(run / RESULT_NAME)
    evaluations = result["evaluations"]
    split = next((s for s in FINAL_SPLITS if s in evaluations), None)
    if split is None:
        raise DataError(f"{run}: this run ended ({result['status']}) before it was evaluated")
    rows = [("this run", evaluations[split]["last"])]
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
    lines.append(f"{result['status']}: {result['examples']:,.0f} examples at {result['eps']:,.0f} EPS{gap}")
    if "round_seconds" in result:
        far = f", replicas {result['divergence']:.2%} from their reference" if "divergence" in result else ""
        lines.append(
            f"rounds: {result['rounds']:,.0f} of {1000 * result['round_seconds']:.1f} ms, in which a trainer makes "
            f"{result['staleness']:.1f} iterations{far}"
        )
    return "\n".join(lines)


def _reference(path: Path, *keys: str) -> dict[str, float]:
    """The metrics that a JSON file holds under ``keys``; DataError if it is another kind of file."""
    found = read_json(path)
    for key in keys:
        if not isinstance(found, dict) or key not in found:
            raise DataError(f"{path}: has no '{key}': not the file that this option wants")
        found = found[key]
    return found


def _cell(value: float | None) -> str:
    return f"{value:>10.5f}" if isinstance(value, float) else f"{'-':>10}"
