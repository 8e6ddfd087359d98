"""What a run folder holds, read without trust: a run that was killed or is still going has half of it, and says
which.
"""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from ssmpi.core.errors import DataError
from ssmpi.core.result_marker import COMPLETE
from ssmpi.core.run_files import METRICS, RESULT_NAME, RUN_FILE, USAGE, VERSIONS
from ssmpi.core.settings import flat

FINAL_SPLITS = ("test", "validation")
CIRCUMSTANCES = ("host", "processor", "started")  # in the file of versions


@dataclass(frozen=True)
class Record:
    """One run. ``missing`` says in sentences what is not there; the rest is empty where it is not there.

    ``windows`` and ``evaluations`` are the lines of ``metrics.jsonl``, ``usage`` is what every rank wrote of itself,
    ``settings`` is flat: ``sync.alpha`` to value. ``circumstances`` are ``CIRCUMSTANCES``, unknown in runs of 0.1.
    """

    folder: Path
    settings: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    circumstances: dict[str, str] = field(default_factory=dict)
    result: dict[str, Any] = field(default_factory=dict)
    windows: list[dict[str, Any]] = field(default_factory=list)
    evaluations: list[dict[str, Any]] = field(default_factory=list)
    usage: list[dict[str, Any]] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The name of its folder."""
        return self.folder.absolute().name

    @property
    def duration(self) -> float:
        """Seconds from the start of its first job to the end of its last, waiting in a queue included; NaN if not
        known.
        """
        try:
            ends = (str(times[key]) for times, key in ((self.circumstances, "started"), (self.result, "ended")))
            began, ended = map(datetime.fromisoformat, ends)
        except (KeyError, ValueError):
            return math.nan
        return (ended - began).total_seconds()

    @property
    def status(self) -> str:
        """``complete``, ``stopped``, ``incomplete``; ``unfinished`` where no result was written."""
        return str(self.result.get("status", "unfinished"))

    @property
    def ended_by(self) -> str:
        """The rule that ended it before all passes were done; empty if none did."""
        found = str(self.result.get("ended_by", "passes"))
        return "" if found == "passes" else f"evaluate.{found}"

    @property
    def elp(self) -> int | None:
        """Example-level parallelism: examples in flight at once."""
        keys = ("data.batch_size", "topology.threads", "topology.trainers")
        return math.prod(self.settings[key] for key in keys) if all(key in self.settings for key in keys) else None

    @cached_property
    def final(self) -> tuple[str, dict[str, Any]]:
        """The split that was scored last and the metrics of the model that was kept; two empty ones where none was."""
        scored = self.result.get("evaluations", {})
        split = next((s for s in FINAL_SPLITS if s in scored), "")
        return split, scored[split][self.kept] if split else {}

    @property
    def kept(self) -> str:
        """Which model the run left: ``last`` or ``best``."""
        return kept(self.result)

    def validation(self, which: str) -> float:
        """NE of the ``last`` or the ``best`` evaluation while training; NaN where there was none."""
        found = self.result.get("evaluations", {}).get(self.settings.get("evaluate.split", "validation"), {})
        value = found.get(which, {}).get("ne")
        return float(value) if isinstance(value, (int, float)) else math.nan

    def number(self, name: str) -> float:
        """A total of the run, or a metric of the final split; NaN where it is not known."""
        found = self.result.get(name, self.final[1].get(name))
        return float(found) if isinstance(found, (int, float)) else math.nan


def kept(result: Mapping[str, Any]) -> str:
    """Which model a run left, by its ``result.json``; runs of earlier versions left the last."""
    return "best" if result.get("kept") == "best" else "last"


def read(folder: Path) -> Record:
    """Read a run folder; DataError only where there is no trace of a run."""
    if not any((folder / name).is_file() for name in (RUN_FILE, METRICS, RESULT_NAME)):
        what = "not a run folder" if folder.is_dir() else "no such folder"
        raise DataError(f"{folder}: {what}; a run folder has {RUN_FILE}, {METRICS} and {RESULT_NAME}")
    missing: list[str] = []
    settings = flat(_toml(folder / RUN_FILE, missing))
    versions = _json(folder / VERSIONS, missing, "versions are not known")
    lines = _lines(folder / METRICS, missing)
    windows = [line for line in lines if line.get("kind") == "train"]
    evaluations = [line for line in lines if line.get("kind") == "evaluation" and line.get("weights") == "model"]
    if lines and not windows:
        missing.append(f"{METRICS} has no training windows: no learning curves")
    result = _result(folder / RESULT_NAME, windows, missing)
    ranks = _usage(folder / USAGE, settings, missing)
    around = {name: str(versions.pop(name)) for name in CIRCUMSTANCES if name in versions}
    return Record(folder, settings, versions, around, result, windows, evaluations, ranks, missing)


def read_json(path: Path) -> Any:
    """A JSON file, or DataError."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: not readable as JSON ({error})") from error


def _toml(path: Path, missing: list[str]) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        missing.append(f"no {path.name}: its settings are not known")
    except (OSError, ValueError) as error:
        missing.append(f"{path.name} is not readable ({error}): its settings are not known")
    return {}


def _json(path: Path, missing: list[str], consequence: str) -> dict[str, Any]:
    try:
        found = read_json(path)
    except DataError as error:
        missing.append(f"{str(error).replace(str(path), path.name)}: {consequence}")
        return {}
    return found if isinstance(found, dict) else {}


def _lines(path: Path, missing: list[str]) -> list[dict[str, Any]]:
    """The readable lines; a run that was killed may leave its last one cut off."""
    if not path.is_file():
        missing.append(f"no {path.name}: it never began to train; no learning curves")
        return []
    found, broken = [], []
    for number, text in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
        try:
            line = json.loads(text)
            found.append(line if isinstance(line, dict) else {})
        except ValueError:
            broken.append(number)
    if broken:
        missing.append(f"{path.name} is broken in line {', '.join(map(str, broken))}: left out")
    if not found:
        missing.append(f"{path.name} is empty: it was ended before its first window; no learning curves")
    return found


def _result(path: Path, windows: list[dict[str, Any]], missing: list[str]) -> dict[str, Any]:
    if not path.is_file():
        last = windows[-1] if windows else {"examples": 0, "seconds": 0.0}
        missing.append(
            f"no {path.name}: still running, or killed. Last seen after {last['examples']:,} examples and "
            f"{last['seconds']:,.0f} s{_when(path.parent / METRICS)}; its log says why it ended"
        )
        return {}
    result = _json(path, missing, "no final results")
    if result and result.get("status") != COMPLETE:
        missing.append(
            f"ended as '{result.get('status')}': {result.get('examples', 0):,.0f} of "
            f"{result.get('expected_examples', 0):,.0f} examples were trained on"
        )
    if result and not result.get("evaluations"):
        missing.append("was never evaluated: no final NE, log-loss and AUC")
    return result


def _usage(folder: Path, settings: Mapping[str, Any], missing: list[str]) -> list[dict[str, Any]]:
    """What the ranks wrote of themselves, trainers first."""
    ranks = [_json(path, missing, "one rank's time is not known") for path in sorted(folder.glob("*.json"))]
    ranks = sorted((r for r in ranks if "threads" in r), key=lambda rank: (rank["role"] != "trainer", rank["role"]))
    expected = sum(settings.get(f"topology.{name}", 0) for name in ("trainers", "embedding_ps", "sync_ps"))
    if len(ranks) < expected:
        missing.append(f"{len(ranks) or 'none'} of {expected} ranks wrote where its time went ({folder.name}/)")
    return ranks


def _when(path: Path) -> str:
    if not path.is_file():
        return ""
    return f", on {datetime.fromtimestamp(path.stat().st_mtime, UTC):%Y-%m-%d at %H:%M:%S} UTC"
