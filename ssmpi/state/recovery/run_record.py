"""``recoveries.json``, the record of a run's starts: where each job began, how often it was restarted after a kill, and
how it resumed each time. It also names the launch that the run belongs to, whose memory is the only valid one, and
holds what must outlive all memory: the timeline of row saves, and what these take.

The first rank writes it, and between two jobs the launcher; anybody may read. Nothing that is read is kept.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from ssmpi.runtime.documents import parse_json
from ssmpi.runtime.errors import DamageError, UserError, json_problem
from ssmpi.runtime.files import atomic_file
from ssmpi.runtime.files.run_files import ATTEMPTS, RECOVERIES, RESULT_NAME, ROWS
from ssmpi.runtime.host.clock import process_age

NOTHING: Mapping[str, Any] = MappingProxyType({"launch": "", "start": 0, "recoveries": []})  # of a run not started
SAVING = "row_save_seconds"
NOT_BEGUN = -1  # in place of the examples: the job ended before all its ranks had started
MOST = 2  # jobs in a row without progress
REMEDY = (
    "it says which surviving memory and which row saves are valid: put an intact copy in its place; or move it away,"
    " then the next start resumes from the newest checkpoint, and the run's earlier recoveries are known only to its"
    " metrics.jsonl"
)

WHOLE_NUMBER = (lambda value: type(value) is int), "a whole number"
FIELDS: Mapping[str, tuple[Callable[[Any], bool], str]] = MappingProxyType({  # what a reader relies on, beside a launch
    **dict.fromkeys(("start", "timeline", "first_start", "earlier", "folder"), WHOLE_NUMBER),
    "attempts": (lambda value: isinstance(value, list) and all(type(n) is int for n in value), "a list of numbers"),
    "recoveries": (lambda value: all(isinstance(each, dict) for each in value), "a list of records"),
})  # fmt: skip

_writing = threading.RLock()  # row saves are recorded on a thread of their own


class Left(NamedTuple):
    """The last launch of a run that ended without saving it, and its last start."""

    launch: str
    start: int


@dataclass(frozen=True)
class RunRecord:
    """What ``recoveries.json`` holds, ``found``. Other keys than these stay there."""

    found: Mapping[str, Any]

    @property
    def launch(self) -> str:
        """The launch that the run belongs to, empty before the first."""
        return str(self.found["launch"])

    @property
    def start(self) -> int:
        """Its last start."""
        return int(self.found["start"])

    @property
    def recoveries(self) -> list[dict[str, Any]]:
        """One record for each recovery."""
        return list(self.found["recoveries"])

    @property
    def timeline(self) -> int:
        """How often the run has started from a checkpoint or from the beginning. Rows saved in an earlier timeline
        belong to training that was undone, and are ignored.
        """
        return int(self.found.get("timeline", 0))

    @property
    def first_start(self) -> int:
        """The start that began the timeline, and created all memory anew: memory of an earlier one is stale, as on a
        host where the run was before.
        """
        return int(self.found.get("first_start", 0))

    @property
    def attempts(self) -> list[int]:
        """After how many examples each job of the run began, or ``NOT_BEGUN``, oldest first."""
        return list(self.found.get("attempts", ()))

    @property
    def row_save_seconds(self) -> float:
        """How long a save of all rows takes: that of the slowest embedding PS, because all of them save at once; 0
        before the first.
        """
        return max(map(float, self.found.get(SAVING, {}).values()), default=0.0)

    @classmethod
    def read(cls, run: Path) -> RunRecord:
        """That of a run folder; of a run not started if there is no file. DamageError if it cannot be read: writing it
        anew would lose it.
        """
        path = run / RECOVERIES
        try:
            found = parse_json(path.read_text(encoding="utf-8"))
        except (FileNotFoundError, NotADirectoryError):
            found = NOTHING
        except (OSError, ValueError) as error:
            raise DamageError(path, json_problem(error), REMEDY) from error
        match found:
            case {"launch": str(), "recoveries": list()}:
                found = {"start": 0, "attempts": _earlier_attempts(run), **found}
            case _:
                raise DamageError(path, "not a record of recoveries", REMEDY)
        for name, (valid, what) in FIELDS.items():
            if not valid(found.get(name, 0)):
                raise DamageError(path, f'"{name}" is {json.dumps(found[name])}, not {what}', REMEDY)
        return cls(found)

    def is_own(self, run: Path) -> bool:
        """Whether it is of this run folder, and did not come here with a copy: the memory of the launch that it names
        belongs to the original.
        """
        inode = run.stat().st_ino
        return bool(self.found.get("folder", inode) == inode)

    def best(self) -> int:
        """The largest number of examples after which a start of the launch has resumed; -1 if none has."""
        recoveries = self.recoveries[self.found.get("earlier", 0) :]
        return max((each.get("examples", -1) for each in recoveries), default=-1)

    def resumed(self) -> list[dict[str, Any]]:
        """The recoveries after which training resumed. An earlier one without an outcome never gets one."""
        return [each for each in self.recoveries if "restore" in each.get("seconds", {})]

    def unfinished(self) -> dict[str, Any]:
        """The last recovery if it has no outcome yet; else an empty one."""
        last: dict[str, Any] = self.recoveries[-1] if self.recoveries else {}
        return last if "restore" not in last.get("seconds", {"restore": 0}) else {}


def owner(run: Path) -> str:
    """The launch that the run belongs to; empty before the first, or if the record is not the folder's own."""
    record = RunRecord.read(run)
    return record.launch if run.is_dir() and record.is_own(run) else ""


def left(run: Path) -> Left | None:
    """The launch whose memory is ahead of the run's checkpoints, if it has survived; None if the last launch saved the
    run, or if the record is not the folder's own.
    """
    record = RunRecord.read(run)
    unsaved = record.launch and "folder" in record.found and record.is_own(run)
    return Left(record.launch, record.start) if unsaved and not (run / RESULT_NAME).exists() else None


@contextlib.contextmanager
def _changing(run: Path) -> Iterator[dict[str, Any]]:
    """The fields of the record; what the block replaces is written after it."""
    with _writing:
        before = RunRecord.read(run).found
        found = dict(before)
        yield found
        if found != before:
            _write(run, found)


def _write(run: Path, found: Mapping[str, Any]) -> None:
    atomic_file.write(run / RECOVERIES, json.dumps(dict(found), indent=1) + "\n")


def begin_start(run: Path, launch: str, start: int = 1, examples: int | None = None) -> None:
    """Assign the run to a start of a launch, and in the same change record that this job begins after ``examples``,
    unless None: a kill in between would leave a run that no launch began.
    """
    with _changing(run) as found:
        earlier = found.get("earlier", 0) if launch == found["launch"] else len(found["recoveries"])
        attempts = found["attempts"] if examples is None else [*found["attempts"], examples]
        found |= {"launch": launch, "start": start, "earlier": earlier, "folder": run.stat().st_ino}
        found["attempts"] = attempts


def begin_timeline(run: Path, start: int = 0) -> int:
    """Start a new timeline, with this start of its launch, and return its number."""
    with _changing(run) as found:
        if "timeline" not in found and (run / ROWS).exists():
            found["timeline"] = int(time.time())  # the record is gone: no row save may belong to the new timeline
        timeline = int(found.get("timeline", 0)) + 1
        found |= {"timeline": timeline, "first_start": start}
    return timeline


def add(run: Path, recovery: dict[str, Any]) -> None:
    """Append a recovery."""
    with _changing(run) as found:
        found["recoveries"] = [*found["recoveries"], recovery]


def outcome(run: Path, more: dict[str, Any]) -> dict[str, Any]:
    """The fields to add to the last recovery when training resumes, with the seconds taken to restore the state. Empty
    if this start is not a recovery.
    """
    if not (last := RunRecord.read(run).unfinished()):
        return {}
    at = last["seconds"]["process"] + last["seconds"].get("load", 0.0)  # the age of this process at that time
    restore = max(0.0, process_age() - at)
    return {**more, "at": last["at"], "seconds": {"restore": round(restore, 3)}}


def complete(run: Path, outcome: Mapping[str, Any]) -> None:
    """Add an ``outcome`` to the recovery that it belongs to, if that is the last one and has no outcome yet."""
    with _changing(run) as found:
        last = RunRecord(found).unfinished()
        if outcome and last.get("at") == outcome["at"]:
            last = {**last, **outcome, "seconds": {**last["seconds"], **outcome["seconds"]}}
            found["recoveries"] = [*found["recoveries"][:-1], last]


def rows_saved(run: Path, durations: Mapping[int, float]) -> None:
    """Record how many seconds the last save of all rows took, by embedding PS: that must outlive its memory."""
    more = {str(server): round(seconds, 6) for server, seconds in durations.items()}
    with _changing(run) as found:
        found[SAVING] = {**found.get(SAVING, {}), **more}


def check_progress(run: Path, examples: int) -> None:
    """Raise UserError if the last two jobs began after ``examples``, as this one does, and saved nothing later."""
    record = RunRecord.read(run)
    before = [place for place in record.attempts if place != NOT_BEGUN]
    if before[-MOST:] == [examples] * MOST:
        _write(run, record.found)  # the list may be that of an earlier version, in a file of its own
        raise UserError(
            f"{run}: the last {MOST} jobs of this run began after {examples:,} examples, as this one would,"
            " and saved nothing later: their logs say why; if it was the time limit, raise it or lower"
            f' checkpoint.every_minutes. To try again, empty the list "attempts" in {run / RECOVERIES}'
        )


def count_start(run: Path, examples: int) -> None:
    """``check_progress``, and record that a job begins after ``examples``."""
    check_progress(run, examples)
    add_attempt(run, examples)


def add_attempt(run: Path, examples: int) -> None:
    """Record that a job began after ``examples``, or has ``NOT_BEGUN``."""
    with _changing(run) as found:
        found["attempts"] = [*found["attempts"], examples]


def _earlier_attempts(run: Path) -> list[int]:
    """Those that ssmpi 0.2 and earlier kept in a file of their own; none if there is none, or if it is damaged."""
    try:
        return [int(place) for place in parse_json((run / ATTEMPTS).read_text(encoding="utf-8"))]
    except (OSError, ValueError, TypeError):
        return []
