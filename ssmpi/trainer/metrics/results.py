"""The results of a run: evaluations, last and best, and ``result.json``, the marker of how the run ended."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ssmpi.embedding.table import KEYS
from ssmpi.runtime.errors import DataError, UserError
from ssmpi.runtime.files import atomic_file
from ssmpi.runtime.files.log import log
from ssmpi.runtime.files.result_marker import COMPLETE, INCOMPLETE, STOPPED
from ssmpi.runtime.files.run_files import RECOVERIES, RESULT_NAME
from ssmpi.runtime.files.write_behind import WriteBehind
from ssmpi.runtime.host.clock import now
from ssmpi.runtime.quality import SUMS, Quality, entropy, improves
from ssmpi.state.checkpoint.parent import Parent
from ssmpi.state.recovery import run_record
from ssmpi.state.recovery.ledger import Booking
from ssmpi.trainer.metrics.log_files import CLOSING_SECONDS, event_writer
from ssmpi.trainer.metrics.metric_logger import MetricLogger
from ssmpi.trainer.metrics.trainer_report import nested

if TYPE_CHECKING:
    from ssmpi.embedding.keyed_table import KeyCounts
    from ssmpi.runtime.run_options import RunOptions
    from ssmpi.runtime.topology import Topology
    from ssmpi.state.recovery.warm_state import Saved

PROGRESSIVE = "progressive"  # in place of a split's name
PATIENCE, PLATEAU = "patience", "plateau"  # why a run ended early, as ``result.json`` says it
ENDED_BY = {PATIENCE: "evaluate.patience", PLATEAU: "schedule.plateau_cuts"}  # the settings
GAUC = "gauc"
ADDED = "rows", "clicks", "predicted_clicks", "rows_of_auc", "rows_of_gauc"
MEANS = {"log_loss": "rows", "accuracy": "rows", "auc": "rows_of_auc", GAUC: "rows_of_gauc"}  # by these rows


class Scored(NamedTuple):
    """One evaluation: the weights, the metrics, and how long it took."""

    vector: np.ndarray
    metrics: dict[str, float]
    seconds: float


class RunResults:
    """Used by the first trainer. A run is finished when ``result.json`` says ``"status": "complete"``, never before.
    ``expected`` is the number of examples of the whole run, ``booking`` what it has lost; it continues what was
    ``saved`` of earlier jobs.
    """

    def __init__(
        self, folder: Path, options: RunOptions, topology: Topology, expected: int, saved: Saved | None = None,
        booking: Booking | None = None,
    ) -> None:  # fmt: skip
        self.folder, self._expected = folder, expected
        self.booking = booking or Booking()
        self._behind = WriteBehind(RECOVERIES)
        state, scored = (saved.state, saved.scored()) if saved else ({}, ())
        self.evaluations: dict[str, dict[str, Any]] = state.get("evaluations", {})
        self.keys: dict[str, dict[str, int]] = state.get(KEYS, {})  # what each dynamic table held at the last pause
        self.logbook = MetricLogger(folder, topology, expected, options.log_seconds, state.get("logbook", {}), scored)
        if options.tensorboard:
            self.logbook.writer = event_writer(folder, int(self.logbook.totals()["examples"]))

    def evaluated(self, split: str, scored: Scored, best: bool | None = None, metric: str = "ne") -> None:
        """Keep one evaluation as the last one of its split, and as the best by a ``metric``, or as ``best`` says."""
        self.logbook.evaluated(split, scored.metrics, scored.seconds)
        found = {**scored.metrics, "after_examples": self.logbook.totals()["examples"]}
        kept = self.evaluations.setdefault(split, {"last": found, "best": found})
        kept["last"] = found
        before = kept["best"][metric]  # None, NaN in JSON, where all labels are the same
        if best if best is not None else improves(metric, found[metric], before):
            kept["best"] = found

    def scored_ahead(self, part: int, quality: Quality, more: Mapping[str, float], seconds: float) -> None:
        """Keep what a part's rows scored before they are trained on: ``more`` does not follow from their quality."""
        before = self.evaluations.get(PROGRESSIVE)
        self.evaluations[PROGRESSIVE] = after_part(before, part, quality, more)
        self.logbook.evaluated(PROGRESSIVE, {"rows": float(quality.sums[0]), **quality.compute(), **more}, seconds)

    def is_scored_ahead(self, part: int) -> bool:
        """Whether that was done."""
        return is_scored(self.evaluations.get(PROGRESSIVE), part)

    def swept(self, keys: Mapping[str, KeyCounts]) -> None:
        """Keep what the dynamic table of each keyed feature holds at a pause, and say it if its table was full."""
        for feature, counts in keys.items():
            refused = counts.refused - self.keys.get(feature, {}).get("refused", 0)
            if refused > 0:
                memory = f"; there is memory for {counts.room:,}" if counts.room < counts.rows else ""
                log.warning(
                    f"the table of {feature} was full: {refused:,} times a new key got no row, and {counts.keys:,} of "
                    f"{counts.rows:,} rows are in use after the pause{memory}; its limit is keys in "
                    "[embedding.dynamic] or in the feature's own section"
                )
            self.logbook.swept(feature, counts._asdict())
        self.keys = {feature: counts._asdict() for feature, counts in keys.items()}

    def rows_saved(self, lines: Sequence[dict[str, Any]]) -> None:
        """Log the row saves of embedding PSs. Their durations are recorded in the background, because the first trainer
        must go on dealing blocks if the disk hangs. A failure is logged.
        """
        durations = {line["ps"]: line.pop("all_rows_seconds") for line in lines if "all_rows_seconds" in line}
        for line in lines:
            self.logbook.rows_saved(line)
        if durations:
            self._behind.do(partial(self._record, durations))

    def _record(self, durations: Mapping[int, float]) -> None:
        try:
            run_record.rows_saved(self.folder, durations)
        except (OSError, UserError) as error:
            log.warning(f"training continues, but how long row saves take is not recorded: {error}")

    def finish(self, *, stopped: bool, ended_by: str = "", kept: str = "last") -> None:
        """Write ``result.json`` and close the log. Says so if rows of a complete run are missing.

        ``ended_by`` is the rule that ended training early, ``kept`` which model is the run's.
        """
        self.logbook.close()
        totals = self.logbook.totals()
        all_done = totals["examples"] == self._expected
        complete = not stopped and (all_done or bool(ended_by))
        status = STOPPED if stopped else COMPLETE if complete else INCOMPLETE
        body = {"status": status, "ended": now(), "expected_examples": self._expected, **totals}
        body |= nested(self.logbook.traffic.totals())
        if self.keys:
            body["keys"] = self.keys
        body |= {"pls": self.booking.pls, **self._recoveries(), **self._parent(), "evaluations": self.evaluations}
        if complete:
            body |= {"ended_by": "passes" if all_done else ended_by, "kept": kept}
        try:
            atomic_file.write(self.folder / RESULT_NAME, json.dumps(plain(body), indent=1) + "\n")
        except (OSError, UserError) as error:
            if not stopped:
                raise
            log.error(
                f"error: no {RESULT_NAME} ({error}): the checkpoint is complete, and the next job resumes from it"
            )
            return
        assert stopped or complete, f"trained on {totals['examples']:,} examples of {self._expected:,}"
        early = "" if all_done or not complete else f" ({ENDED_BY[ended_by]})"
        log.info(
            f"{status}{early}: {totals['examples']:,.0f} examples in {totals['seconds']:.1f} s ({totals['eps']:,.0f}"
            f" EPS); results in {self.folder}"
        )

    def _recoveries(self) -> dict[str, Any]:
        """The fields about recoveries; none if their record cannot be read, which must not cost the result."""
        if not self._behind.settle(CLOSING_SECONDS):
            log.error(f"error: {self.folder / RECOVERIES}: its disk has not answered for {CLOSING_SECONDS:g} s")
        try:
            found = run_record.RunRecord.read(self.folder).recoveries
        except DataError as error:
            log.error(f"error: {RESULT_NAME} lacks the run's recoveries: {error}")
            return {}
        return {"restarts": len(found), "recoveries": found}

    def _parent(self) -> dict[str, Any]:
        """The run that this one continues; nothing if its record cannot be read, which must not cost the result."""
        try:
            parent = Parent.recorded(self.folder)
        except DataError as error:
            log.error(f"error: {RESULT_NAME} does not say which run was continued: {error}")
            return {}
        return {"continued_from": parent.as_json()} if parent else {}


def plain(value: Any) -> Any:
    """``value`` with None in place of NaN and infinity, which JSON does not have."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def after_part(
    found: Mapping[str, Any] | None, part: int, quality: Quality, more: Mapping[str, float]
) -> dict[str, dict[str, Any]]:
    """Progressive validation (Blum, Kalai, Langford, COLT 1999): every part of the data is scored before it is trained
    on, so each figure is of rows that the model has not seen. What ``found`` becomes with one more ``part``: figures of
    the ``last`` one, and of the ``whole`` run. AUC and GAUC of the whole run are the mean of the parts', weighted
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
