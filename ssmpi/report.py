"""A run as a picture and as a table, from what is in its folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ssmpi.errors import DataError
from ssmpi.log import log

COLUMNS = ("ne", "log_loss", "auc", "accuracy")


def read_json(path: Path) -> Any:
    """A JSON file, or DataError."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: not readable as JSON ({error})") from error


def table(run: Path, baseline: Path | None, teacher: Path | None) -> str:
    """The result of a run on its test split, beside reference points where they are given."""
    if not (run / "result.json").is_file():
        raise DataError(f"{run}: no result.json, so no run that ended here; its log says why")
    result = read_json(run / "result.json")
    evaluations = result["evaluations"]
    split = next((s for s in ("test", "validation") if s in evaluations), None)
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


def plot(run: Path) -> Path | None:
    """Draw learning curves, EPS and sync gap into ``plot.png``; says so when matplotlib is not installed."""
    try:
        import matplotlib as mpl

        mpl.use("Agg")
        import matplotlib.pyplot as plt
    except ImportError:
        log.info("no plot: pip install 'ssmpi[plots]' to have one")
        return None
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    windows = [line for line in lines if line["kind"] == "train"]
    evaluations = [line for line in lines if line["kind"] == "evaluation" and line["weights"] == "model"]
    figure, axes = plt.subplots(2, 2, figsize=(10, 6.5), constrained_layout=True)
    panels = (
        ("ne", "normalized entropy"),
        ("auc", "AUC"),
        ("eps", "examples per second"),
        ("sync_gap_thread", "sync gap (iterations of a thread)"),
    )
    for axis, (key, title) in zip(axes.flat, panels, strict=True):
        points = [(w["examples"] / 1e6, w[key]) for w in windows if w.get(key) is not None]
        axis.plot(*zip(*points, strict=True) if points else ([], []), label="training, before update", linewidth=1.2)
        for split in dict.fromkeys(e["split"] for e in evaluations):
            marks = [
                (e["examples"] / 1e6, e[key]) for e in evaluations if e["split"] == split and e.get(key) is not None
            ]
            if marks:
                axis.plot(*zip(*marks, strict=True), "o--", label=split, markersize=5)
        axis.set(title=title, xlabel="million examples")
        axis.grid(alpha=0.3)
        if key in ("eps", "sync_gap_thread"):
            axis.set_ylim(bottom=0)
        if not points:
            axis.text(
                0.5, 0.5, "no rounds" if key == "sync_gap_thread" else "no data", ha="center", transform=axis.transAxes
            )
        if axis.has_data() and key in ("ne", "auc"):
            axis.legend(fontsize=8)
    figure.suptitle(str(run))
    target = run / "plot.png"
    figure.savefig(target, dpi=110)
    plt.close(figure)
    return target


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
