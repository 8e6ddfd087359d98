"""What a run leaves behind: evaluations, last and best, and ``result.json``, the marker that says how the run ended."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ssmpi.checkpoint import disk
from ssmpi.log import log
from ssmpi.roles.logbook import Logbook, State

if TYPE_CHECKING:
    from ssmpi.config import Config

RESULT_NAME = "result.json"


class Earlier(NamedTuple):
    """What the job that this one goes on from had found: the state of its log book, and its evaluations."""

    logbook: State
    evaluations: dict[str, dict[str, Any]]


class Results:
    """Kept by the first trainer. A run is finished when ``result.json`` says ``"status": "complete"``, never before."""

    def __init__(self, config: Config, folder: Path, rows: int, earlier: Earlier | None = None) -> None:
        self._config, self._folder = config, folder
        self._expected = rows * config.data.passes
        logbook, self.evaluations = (earlier.logbook, earlier.evaluations) if earlier else (None, {})
        self.logbook = Logbook(folder, config.topology, self._expected, config.run.log_seconds, logbook)
        if config.run.tensorboard:
            self.logbook.writer = tensorboard_writer(folder, int(self.logbook.totals()["examples"]))

    def evaluated(self, split: str, metrics: dict[str, float], seconds: float, what: str = "model") -> None:
        """Keep one evaluation as the last one of its split, and as the best if its NE is lowest."""
        self.logbook.evaluated(split, metrics, seconds, what)
        found = {**metrics, "after_examples": self.logbook.totals()["examples"]}
        name = split if what == "model" else f"{split} ({what})"
        kept = self.evaluations.setdefault(name, {"last": found, "best": found})
        kept["last"] = found
        if found["ne"] < kept["best"]["ne"]:
            kept["best"] = found

    def finish(self, *, stopped: bool) -> None:
        """Write ``result.json`` and close the log book. Says so if rows of a complete run are missing."""
        self.logbook.close()
        totals = self.logbook.totals()
        complete = not stopped and totals["examples"] == self._expected
        status = "stopped" if stopped else "complete" if complete else "incomplete"
        body = {"status": status, "expected_examples": self._expected, **totals, "evaluations": self.evaluations}
        beside = self._folder / f".{RESULT_NAME}.tmp"
        disk.write(beside, (json.dumps(plain(body), indent=1) + "\n").encode())
        disk.rename(beside, self._folder / RESULT_NAME)
        assert stopped or complete, f"trained on {totals['examples']:,} examples of {self._expected:,}"
        log.info(
            f"{status}: {totals['examples']:,.0f} examples in {totals['seconds']:.1f} s ({totals['eps']:,.0f} EPS); "
            f"results in {self._folder}"
        )


def plain(value: Any) -> Any:
    """The same value with null for numbers that JSON does not have."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def tensorboard_writer(folder: Path, examples: int) -> Any:
    """A TensorBoard writer, or None with a word about it where TensorBoard is not installed."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        log.info("no TensorBoard events: pip install 'ssmpi[tensorboard]' to have them")
        return None
    return SummaryWriter(str(folder), purge_step=examples)  # later events of an earlier job come again
