"""``recoveries.json``: how often a run was restarted after a kill, and how it resumed each time. It also names the
launch that the run belongs to, whose memory is the only valid one, and holds what must outlive all memory: the timeline
of row saves, and what these take. And ``attempts.json``: where each job of the run began.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from ssmpi.runtime.documents import parse_json
from ssmpi.runtime.errors import DamageError, UserError, json_problem
from ssmpi.runtime.files import atomic_file, attempts
from ssmpi.runtime.files.run_files import ATTEMPTS, RECOVERIES, RESULT_NAME, ROWS
from ssmpi.runtime.host.clock import process_age
from ssmpi.runtime.mpi.rank_memory import PersistedKey, ProcessMemory, RankMemory
from ssmpi.state.recovery.ledger import Ledger

OUTCOME = "outcome"  # in the first trainer's note, beside the ledger: what a recovery has come to
NOTHING: Mapping[str, Any] = MappingProxyType({"launch": "", "start": 0, "recoveries": []})  # of a run not started
SAVING = "row_save_seconds"
REMEDY = (
    "it says which surviving memory and which row saves are valid: put an intact copy in its place; or move it away,"
    " then the next start resumes from the newest checkpoint, and the run's earlier recoveries are known only to its"
    " metrics.jsonl"
)


class Left(NamedTuple):
    """The last launch of a run that ended without saving it, and its last start."""

    launch: str
    start: int


@dataclass(frozen=True)
class Record:
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
    def row_save_seconds(self) -> float:
        """How long a save of all rows takes: that of the slowest embedding PS, because all of them save at once; 0
        before the first.
        """
        return max(map(float, self.found.get(SAVING, {}).values()), default=0.0)

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


class RecoveryState:
    """What a ``run`` keeps of its starts and recoveries: on disk, and as notes in the ``memory`` of a trainer. The
    ``ledger`` is noted when training starts, ``pls`` is the portion of lost samples by then, and ``losses`` what this
    start adds to the record of its recovery. Nothing that is read is kept; several threads may use one object.
    """

    def __init__(
        self, run: Path, memory: RankMemory | None = None, ledger: Ledger | None = None,
        losses: Mapping[str, Any] | None = None, pls: float = 0.0,
    ) -> None:  # fmt: skip
        self.run, self.memory, self.ledger = run, memory or ProcessMemory(), ledger or Ledger()
        self.losses, self.pls = losses or {}, pls
        self._lock = threading.RLock()  # row saves are recorded on a thread of their own

    def record(self) -> Record:
        """What is recorded; nothing if there is no file. DamageError if it cannot be read: writing it anew would lose
        it.
        """
        path = self.run / RECOVERIES
        try:
            found = parse_json(path.read_text(encoding="utf-8"))
        except (FileNotFoundError, NotADirectoryError):
            return Record(NOTHING)
        except (OSError, ValueError) as error:
            raise DamageError(path, json_problem(error), REMEDY) from error
        match found:
            case {"launch": str(), "recoveries": list()}:
                return Record({"start": 0, **found})
        raise DamageError(path, "not a record of recoveries", REMEDY)

    def left(self) -> Left | None:
        """The launch whose memory is ahead of the run's checkpoints, if it has survived; None if the last launch saved
        the run, or if the record is not the folder's own.
        """
        record = self.record()
        unsaved = record.launch and "folder" in record.found and record.is_own(self.run)
        return Left(record.launch, record.start) if unsaved and not (self.run / RESULT_NAME).exists() else None

    def begin_start(self, launch: str, start: int = 1) -> str:
        """Assign the run to a start of a launch; returns the name of its previous launch, empty if there was none."""
        with self._lock:
            record = self.record()
            earlier = record.found.get("earlier", 0) if launch == record.launch else len(record.recoveries)
            folder = self.run.stat().st_ino
            self._write({**record.found, "launch": launch, "start": start, "earlier": earlier, "folder": folder})
        return record.launch if record.is_own(self.run) else ""

    def begin_timeline(self, start: int = 0) -> int:
        """Start a new timeline, with this start of its launch, and return its number."""
        with self._lock:
            found = dict(self.record().found)
            if "timeline" not in found and (self.run / ROWS).exists():
                found["timeline"] = int(time.time())  # the record is gone: no row save may belong to the new timeline
            self._write({**found, "timeline": found.get("timeline", 0) + 1, "first_start": start})
            return self.record().timeline

    def add(self, recovery: dict[str, Any]) -> None:
        """Append a recovery."""
        with self._lock:
            record = self.record()
            self._write({**record.found, "recoveries": [*record.recoveries, recovery]})

    def rows_saved(self, durations: Mapping[int, float]) -> None:
        """Record how many seconds the last save of all rows took, by embedding PS: that must outlive its memory."""
        with self._lock:
            found = self.record().found
            more = {str(server): round(seconds, 6) for server, seconds in durations.items()}
            self._write({**found, SAVING: {**found.get(SAVING, {}), **more}})

    def outcome(self, more: dict[str, Any]) -> dict[str, Any]:
        """The fields to add to the last record when training resumes, with the seconds taken to restore the state.
        Empty if this start is not a recovery.
        """
        if not (last := self.record().unfinished()):
            return {}
        at = last["seconds"]["process"] + last["seconds"].get("load", 0.0)  # the age of this process at that time
        restore = max(0.0, process_age() - at)
        return {**more, "at": last["at"], "seconds": {"restore": round(restore, 3)}}

    def complete(self, outcome: Mapping[str, Any]) -> dict[str, Any]:
        """Add an ``outcome`` to the record that it belongs to; returns the whole record, or an empty one if that is not
        the last or has its outcome already.
        """
        with self._lock:
            record = self.record()
            last = record.unfinished()
            if not outcome or last.get("at") != outcome["at"]:
                return {}
            last = {**last, **outcome, "seconds": {**last["seconds"], **outcome["seconds"]}}
            self._write({**record.found, "recoveries": [*record.recoveries[:-1], last]})
            return last

    def count_start(self, examples: int) -> None:
        """Record that a job begins after ``examples``; UserError if the last two began there and saved nothing
        later.
        """
        before = [place for place in attempts.read(self.run) if place != attempts.NOT_BEGUN]
        if before[-attempts.MOST :] == [examples] * attempts.MOST:
            raise UserError(
                f"{self.run}: the last {attempts.MOST} jobs of this run began after {examples:,} examples, as this one"
                " would, and saved nothing later: their logs say why; if it was the time limit, raise it or lower"
                f" checkpoint.every_minutes. Remove {self.run / ATTEMPTS} to try again"
            )
        attempts.add(self.run, examples)

    def note_run(self) -> None:
        """Note the run that this memory is of, for who finds it."""
        self.memory.note(PersistedKey.RUN, str(self.run.resolve()))

    @property
    def run_so_far(self) -> dict[str, Any]:
        """What the first trainer has noted that no other trainer has."""
        found: dict[str, Any] = self.memory.noted(PersistedKey.RUN_SO_FAR)
        return found

    def note_run_so_far(self, values: Mapping[str, Any]) -> None:
        """Note what no other trainer has."""
        self.memory.note(PersistedKey.RUN_SO_FAR, values)

    def noted(self) -> tuple[Ledger | None, dict[str, Any]]:
        """The ledger that the first trainer has noted, if any, and the outcome that was noted with it."""
        found = self.memory.noted(PersistedKey.LEDGER)
        return (Ledger.of_state(found), found.get(OUTCOME) or {}) if found else (None, {})

    def book(self, outcome: Mapping[str, Any]) -> None:
        """Note the ledger and, for the next start if this one is killed now, the outcome, together."""
        self.memory.note(PersistedKey.LEDGER, {**self.ledger.state(), OUTCOME: outcome})

    @property
    def forgotten(self) -> str | None:
        """The recovery whose outcome includes what this trainer has lost in flight."""
        at: str | None = self.memory.noted(PersistedKey.FORGOTTEN)
        return at

    def forget(self, at: str | None) -> None:
        """The outcome of the recovery that began ``at`` this time includes what this trainer has lost in flight."""
        self.memory.note(PersistedKey.FORGOTTEN, at)

    def _write(self, found: Mapping[str, Any]) -> None:
        atomic_file.write(self.run / RECOVERIES, json.dumps(found, indent=1) + "\n")
