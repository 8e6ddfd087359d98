"""What a run leaves behind: evaluations, last and best, and ``result.json``, the marker that says how the run ended."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ssmpi.runtime.errors import DataError, UserError
from ssmpi.runtime.files import atomic_file
from ssmpi.runtime.files.log import log
from ssmpi.runtime.files.result_marker import COMPLETE, INCOMPLETE, STOPPED
from ssmpi.runtime.files.run_files import RECOVERIES, RESULT_NAME
from ssmpi.runtime.files.write_behind import WriteBehind
from ssmpi.runtime.host.clock import now
from ssmpi.state.checkpoint.parent import Parent
from ssmpi.state.recovery.state import RecoveryState
from ssmpi.trainer.metrics import progressive
from ssmpi.trainer.metrics.jsonl import CLOSING_SECONDS
from ssmpi.trainer.metrics.metric_logger import EarlierLog, MetricLogger
from ssmpi.trainer.metrics.traffic import nested

if TYPE_CHECKING:
    from ssmpi.config import Run
    from ssmpi.embedding.keyed_table import KeyCounts
    from ssmpi.runtime.quality import Quality
    from ssmpi.runtime.topology import Topology
    from ssmpi.trainer.metrics.events import EventWriter


class Scored(NamedTuple):
    """One evaluation: the weights, the metrics, and how long it took."""

    vector: np.ndarray
    metrics: dict[str, float]
    seconds: float


class EarlierResults(NamedTuple):
    """What the job that this one continues had logged and evaluated, and what the dynamic table of each feature held at
    its last pause.
    """

    logbook: EarlierLog
    evaluations: dict[str, dict[str, Any]]
    keys: dict[str, dict[str, int]]


class RunResults:
    """Used by the first trainer. A run is finished when ``result.json`` says ``"status": "complete"``, never before.
    ``expected`` is the number of examples of the whole run. ``recovery`` is the state of its
    recoveries, which others use too.
    """

    def __init__(
        self, folder: Path, options: Run, topology: Topology, expected: int, earlier: EarlierResults | None = None,
        recovery: RecoveryState | None = None,
    ) -> None:  # fmt: skip
        self.folder, self._expected = folder, expected
        self.recovery = recovery or RecoveryState(folder)
        self._behind = WriteBehind(RECOVERIES)
        logbook, self.evaluations, self.keys = earlier or (None, {}, {})
        self.logbook = MetricLogger(folder, topology, expected, options.log_seconds, logbook)
        if options.tensorboard:
            self.logbook.writer = event_writer(folder, int(self.logbook.totals()["examples"]))

    def evaluated(self, split: str, scored: Scored, what: str = "model", best: bool | None = None) -> None:
        """Keep one evaluation as the last one of its split, and as the best if its NE is lowest, or as ``best``
        says.
        """
        self.logbook.evaluated(split, scored.metrics, scored.seconds, what)
        found = {**scored.metrics, "after_examples": self.logbook.totals()["examples"]}
        name = split if what == "model" else f"{split} ({what})"
        kept = self.evaluations.setdefault(name, {"last": found, "best": found})
        kept["last"] = found
        lowest = kept["best"]["ne"]  # None, NaN in JSON, where all labels are the same
        if best if best is not None else found["ne"] < (math.inf if lowest is None else lowest):
            kept["best"] = found

    def scored_ahead(self, part: int, quality: Quality, more: Mapping[str, float], seconds: float) -> None:
        """Keep what a part's rows scored before they are trained on: ``more`` does not follow from their quality."""
        before = self.evaluations.get(progressive.NAME)
        self.evaluations[progressive.NAME] = progressive.after(before, part, quality, more)
        self.logbook.evaluated(progressive.NAME, {"rows": float(quality.sums[0]), **quality.compute(), **more}, seconds)

    def is_scored_ahead(self, part: int) -> bool:
        """Whether that was done."""
        return progressive.is_scored(self.evaluations.get(progressive.NAME), part)

    def swept(self, keys: Mapping[str, KeyCounts]) -> None:
        """Keep what the dynamic table of each keyed feature holds at a pause, and say it if its table was full."""
        for feature, counts in keys.items():
            refused = counts.refused - self.keys.get(feature, {}).get("refused", 0)
            if refused > 0:
                memory = f"; there is memory for {counts.room:,}" if counts.room < counts.rows else ""
                log.warning(
                    f"the table of {feature} was full: {refused:,} times a new key got no row, and {counts.keys:,} of "
                    f"{counts.rows:,} rows are left in use{memory}; its limit is keys of embedding.dynamic or of its "
                    "own section"
                )
            self.logbook.swept(feature, counts._asdict())
        self.keys = {feature: counts._asdict() for feature, counts in keys.items()}

    def rows_saved(self, lines: Sequence[dict[str, Any]], recorded: Callable[[], object] | None = None) -> None:
        """Log the row saves of embedding PSs. Their durations are recorded in the background, because the first trainer
        must go on dealing blocks if the disk hangs; then ``recorded`` is called. A failure is logged.
        """
        found = []
        for line in lines:
            if "all_rows_seconds" in line:
                found.append((line["ps"], line.pop("all_rows_seconds"), line.pop("all_rows_cost")))
            self.logbook.rows_saved(line)
        self._behind.do(partial(self._record, found, recorded))

    def _record(self, found: Sequence[tuple[int, float, float]], recorded: Callable[[], object] | None) -> None:
        try:
            for each in found:
                self.recovery.rows_saved(*each)
            if recorded:
                recorded()
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
        body |= {"pls": self.recovery.pls, **self._recoveries(), **self._parent(), "evaluations": self.evaluations}
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
        early = "" if all_done or not complete else f" (evaluate.{ended_by})"
        log.info(
            f"{status}{early}: {totals['examples']:,.0f} examples in {totals['seconds']:.1f} s ({totals['eps']:,.0f}"
            f" EPS); results in {self.folder}"
        )

    def _recoveries(self) -> dict[str, Any]:
        """The fields about recoveries; none if their record cannot be read, which must not cost the result."""
        if not self._behind.settle(CLOSING_SECONDS):
            log.error(f"error: {self.folder / RECOVERIES}: its disk has not answered for {CLOSING_SECONDS:g} s")
        try:
            found = self.recovery.record().recoveries
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


def event_writer(folder: Path, examples: int) -> EventWriter | None:
    """A writer of TensorBoard's events, or None, with a message, where TensorBoard is not installed."""
    try:
        from ssmpi.trainer.metrics.events import EventWriter
    except ImportError:
        log.info("no TensorBoard events: pip install 'ssmpi[tensorboard]' to have them")
        return None
    return EventWriter(folder, examples)
