"""One run as reports see it: settings, versions, learning curves, results, read from its folder defensively. A run that
was killed or is still running has incomplete files: whatever cannot be read is left out and named, with file and line.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from ssmpi.runtime.documents import parse_json, parse_toml
from ssmpi.runtime.errors import DamageError, DataError, json_problem
from ssmpi.runtime.files import run_files
from ssmpi.runtime.files.result_marker import COMPLETE
from ssmpi.runtime.files.run_files import METRICS, RESULT_NAME, RUN_FILE, USAGE, VERSIONS
from ssmpi.runtime.settings import flat
from ssmpi.runtime.words import counted
from ssmpi.state.recovery import run_record
from ssmpi.trainer.metrics.results import ENDED_BY

FINAL_SPLITS = ("test", "validation")
MEASURED = ("train", "evaluation")  # kinds of lines in METRICS
NAMED = 5  # broken lines, in a message
CIRCUMSTANCES = ("host", "processor", "started")  # in the file of versions


@dataclass(frozen=True, kw_only=True)
class Record:
    """One run. ``missing`` lists in sentences what could not be read; the corresponding fields are empty. ``windows``
    and ``evaluations`` are the lines of ``metrics.jsonl``, ``usage`` the ranks' CPU times, ``recoveries`` those of
    ``recoveries.json``, ``settings`` is flat: ``sync.alpha`` to value. ``circumstances`` are ``CIRCUMSTANCES``, unknown
    in runs of 0.1.
    """

    folder: Path
    settings: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    circumstances: dict[str, str] = field(default_factory=dict)
    result: dict[str, Any] = field(default_factory=dict)
    windows: list[dict[str, Any]] = field(default_factory=list)
    evaluations: list[dict[str, Any]] = field(default_factory=list)
    usage: list[dict[str, Any]] = field(default_factory=list)
    recoveries: list[dict[str, Any]] = field(default_factory=list)
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
            return (ended - began).total_seconds()
        except (KeyError, ValueError, TypeError):  # TypeError: one with a time zone, one without
            return math.nan

    @property
    def is_empty(self) -> bool:
        """Whether nothing that it measured can be read: no window, no evaluation and no result."""
        return not (self.windows or self.evaluations or self.result)

    @property
    def status(self) -> str:
        """``complete``, ``stopped``, ``incomplete``; ``unfinished`` where no result was written."""
        return str(self.result.get("status", "unfinished"))

    @property
    def ended_by(self) -> str:
        """The rule that ended it before all passes were done; empty if none did."""
        found = str(self.result.get("ended_by", "passes"))
        return "" if found == "passes" else ENDED_BY.get(found, f"evaluate.{found}")

    @property
    def elp(self) -> int | None:
        """Example-level parallelism: examples in flight at once."""
        values = [self.settings.get(key) for key in ("data.batch_size", "topology.threads", "topology.trainers")]
        known = [value for value in values if isinstance(value, int)]
        homes = self.settings.get("topology.group", 1) if self.settings.get("hierarchy.homes") == "first" else 1
        return math.prod(known) // homes if len(known) == len(values) else None

    @cached_property
    def final(self) -> tuple[str, dict[str, Any]]:
        """The split that was scored last and the metrics of the model that was kept; two empty ones where none was."""
        scored = self.result.get("evaluations", {})
        last, during = (str(self.settings.get(f"evaluate.{name}")) for name in ("final", "split"))
        split = next((s for s in (last, *FINAL_SPLITS, during) if s in scored), "")
        return split, scored[split].get(self.kept, {}) if split else {}

    @property
    def kept(self) -> str:
        """Which model the run left: ``last`` or ``best``."""
        return kept(self.result)

    def validation(self, which: str) -> float:
        """NE of the ``last`` or the ``best`` evaluation while training; NaN where there was none."""
        found = self.result.get("evaluations", {}).get(self.settings.get("evaluate.split", "validation"), {})
        value = found.get(which, {}).get("ne")
        return float(value) if isinstance(value, (int, float)) else math.nan

    def number(self, name: str, split: str = "") -> float:
        """A total of the run, or a metric of the final split; NaN where it is not known, or ``split`` is another."""
        scored, metrics = self.final
        found = self.result.get(name, metrics.get(name) if split in ("", scored) else None)
        return float(found) if isinstance(found, (int, float)) else math.nan

    def by_trainer(self, name: str) -> list[float]:
        """The mean of a rate that windows have for each trainer, weighted by their seconds; empty if none has it, or
        their numbers of trainers differ: since a job with another one.
        """
        found, before = [], 0.0
        for window in self.windows:
            examples, before = window["examples"] - before, window["examples"]
            rates, eps = window.get(name), window.get("eps")
            if isinstance(rates, list) and eps and examples > 0:
                found.append((rates, examples / eps))
        found = [(rates, seconds) for rates, seconds in found if len(rates) == len(found[-1][0])]
        total = sum(seconds for _, seconds in found)
        return [
            sum(rate * seconds for rate, (_, seconds) in zip(rates, found, strict=True)) / total
            for rates in zip(*(rates for rates, _ in found), strict=True)
        ]

    @property
    def job_examples(self) -> float:
        """The examples that ``usage`` is about: the last job's, or the whole run's where results do not say."""
        found = self.number("job_examples")
        return found if math.isfinite(found) else self.number("examples")


def kept(result: Mapping[str, Any]) -> str:
    """Which model a run left, by its ``result.json``; runs of earlier versions left the last."""
    return "best" if result.get("kept") == "best" else "last"


def read(folder: Path) -> Record:
    """Read a run folder; DataError only if there is no trace of a run."""
    if not any((folder / name).exists() for name in (METRICS, RESULT_NAME)):
        run_files.check(folder, RUN_FILE, VERSIONS)  # the files that are written first
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
    return Record(
        folder=folder,
        settings=settings,
        versions=versions,
        circumstances=around,
        result=result,
        windows=windows,
        evaluations=evaluations,
        usage=ranks,
        recoveries=_recoveries(folder, missing),
        missing=missing,
    )


def read_json(path: Path) -> Any:
    """A JSON file, or DataError."""
    try:
        return parse_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: {json_problem(error)}") from error


def _recoveries(folder: Path, missing: list[str]) -> list[dict[str, Any]]:
    try:
        return [each for each in run_record.RunRecord.read(folder).recoveries if isinstance(each, dict)]
    except DamageError as error:
        missing.append(f"{error.path.name}: {error.found}: its recoveries are not known")
        return []


def _toml(path: Path, missing: list[str]) -> dict[str, Any]:
    try:
        return parse_toml(path.read_text(encoding="utf-8-sig"))
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
    if isinstance(found, dict):
        return found
    missing.append(f"{path.name}: not a JSON object: {consequence}")
    return {}


def _lines(path: Path, missing: list[str]) -> list[dict[str, Any]]:
    """The readable lines; a run that was killed may leave its last one cut off."""
    try:
        content = path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        missing.append(f"no {path.name}: removed, or it never began to train; no learning curves")
        return []
    except OSError as error:
        missing.append(f"{path.name} {json_problem(error)}: no learning curves")
        return []
    found, broken = [], []
    for number, text in enumerate(content.splitlines(), 1):
        try:
            line = parse_json(text)
        except ValueError:
            line = None
        if isinstance(line, dict) and (line.get("kind") not in MEASURED or _are_numbers(line, "examples", "seconds")):
            found.append(line)
        else:
            broken.append(number)
    if broken:
        more = f" and {len(broken) - NAMED:,} more" if len(broken) > NAMED else ""
        missing.append(f"{path.name} is broken in line {', '.join(map(str, broken[:NAMED]))}{more}: left out")
    elif not found:
        missing.append(f"{path.name} is empty: it was ended before its first window; no learning curves")
    return found


def _result(path: Path, windows: list[dict[str, Any]], missing: list[str]) -> dict[str, Any]:
    if not path.exists():
        last = windows[-1] if windows else {"examples": 0, "seconds": 0.0}
        missing.append(
            f"no {path.name}: still running, or killed. Last seen after {last['examples']:,} examples and "
            f"{last['seconds']:,.0f} s{_when(path.parent / METRICS)}; its log says why it ended"
        )
        return {}
    result = _json(path, missing, "no final results")
    if result and not _is_result(result):
        missing.append(f"{path.name}: its values are not those that a run writes: no final results")
        return {}
    if result and result.get("status") != COMPLETE:
        missing.append(
            f"ended as '{result.get('status')}': {result.get('examples', 0):,.0f} of "
            f"{result.get('expected_examples', 0):,.0f} examples were trained on"
        )
    if result and not result.get("evaluations"):
        missing.append("was never evaluated: no final NE, log-loss and AUC")
    return result


def _usage(folder: Path, settings: Mapping[str, Any], missing: list[str]) -> list[dict[str, Any]]:
    """The ranks' own usage files, trainers first."""
    ranks = [_json(path, missing, "one rank's time is not known") for path in sorted(folder.glob("*.json"))]
    ranks = sorted(filter(_is_usage, ranks), key=lambda rank: (rank["role"] != "trainer", rank["role"]))
    counts = [settings.get(f"topology.{name}") for name in ("trainers", "embedding_ps", "sync_ps")]
    expected = sum(count for count in counts if isinstance(count, int))
    if len(ranks) < expected:
        missing.append(
            f"{len(ranks) or 'none'} of {counted(expected, 'rank')} wrote where its time went ({folder.name}/)"
        )
    return ranks


def _is_result(found: Mapping[str, Any]) -> bool:
    """Whether the values have the types that a run writes."""
    scored = found.get("evaluations")
    if not isinstance(scored, dict) or not _are_numbers(found, "examples", "expected_examples"):
        return False
    return all(
        isinstance(of, dict) and all(isinstance(metrics, dict) for metrics in of.values()) for of in scored.values()
    )


def _is_usage(rank: Mapping[str, Any]) -> bool:
    """The same of what a rank wrote of itself."""
    threads = rank.get("threads")
    if not isinstance(threads, dict) or "index" not in rank or not _are_numbers(rank, "peak_memory_bytes"):
        return False
    spent = threads.values()
    return isinstance(rank.get("role"), str) and all(
        isinstance(of, dict) and _are_numbers(of, "cpu_seconds", "wall_seconds") for of in spent
    )


def _are_numbers(values: Mapping[str, Any], *names: str) -> bool:
    return all(isinstance(values.get(name), (int, float)) for name in names)


def _when(path: Path) -> str:
    if not path.is_file():
        return ""
    return f", on {datetime.fromtimestamp(path.stat().st_mtime, UTC):%Y-%m-%d at %H:%M:%S} UTC"
