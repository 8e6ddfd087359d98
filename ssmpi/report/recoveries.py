"""``recoveries.json``: how often a run was restarted after a kill, and how it resumed each time. It also names the
launch that the run belongs to, whose memory is the only valid one, and holds what must outlive all memory: the timeline
of row saves, and what these take.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ssmpi.core.errors import DamageError, json_problem
from ssmpi.files import atomic_file
from ssmpi.files.run_files import RECOVERIES, RESULT_NAME, ROWS
from ssmpi.host.clock import process_age

SAVING, COST = "row_save_seconds", "row_save_costs"
REMEDY = (
    "it says which surviving memory and which row saves are valid: put an intact copy in its place; or move it away,"
    " then the next start resumes from the newest checkpoint, and the run's earlier recoveries are known only to its"
    " metrics.jsonl"
)


def read(run: Path) -> dict[str, Any]:
    """``launch``, its name, ``start``, its last one, and ``recoveries``, a list; if there is no file, those of a run
    that has not started. DamageError if it cannot be read: writing it anew would lose the record.
    """
    path = run / RECOVERIES
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return {"launch": "", "start": 0, "recoveries": []}
    except (OSError, ValueError) as error:
        raise DamageError(path, json_problem(error), REMEDY) from error
    match found:
        case {"launch": str(), "recoveries": list()}:
            return {"start": 0, **found}
    raise DamageError(path, "not a record of recoveries", REMEDY)


def is_own(run: Path, found: dict[str, Any]) -> bool:
    """Whether the record ``found`` is of this run folder, and did not come here with a copy: the memory of the launch
    that it names belongs to the original.
    """
    inode = run.stat().st_ino
    return bool(found.get("folder", inode) == inode)


def begin(run: Path, launch: str, start: int = 1) -> str:
    """Assign the run to a start of a launch; returns the name of its previous launch, empty if there was none."""
    found = read(run)
    earlier = found.get("earlier", 0) if launch == found["launch"] else len(found["recoveries"])
    _write(run, {**found, "launch": launch, "start": start, "earlier": earlier, "folder": run.stat().st_ino})
    return str(found["launch"]) if is_own(run, found) else ""


class Left(NamedTuple):
    """The last launch of a run that ended without saving it, and its last start."""

    launch: str
    start: int


def left(run: Path) -> Left | None:
    """The launch whose memory is ahead of the run's checkpoints, if it has survived; None if the last launch saved the
    run, or if the record is not the folder's own.
    """
    found = read(run)
    if not found["launch"] or "folder" not in found or not is_own(run, found) or (run / RESULT_NAME).exists():
        return None
    return Left(found["launch"], found["start"])


def best(found: dict[str, Any]) -> int:
    """The largest number of examples after which a start of the launch has resumed, from ``read``; -1 if none has."""
    return max((each.get("examples", -1) for each in found["recoveries"][found.get("earlier", 0) :]), default=-1)


def timeline(run: Path) -> int:
    """How often the run has started from a checkpoint or from the beginning. Rows saved in an earlier timeline belong
    to training that was undone, and are ignored.
    """
    return int(read(run).get("timeline", 0))


def first_start(run: Path) -> int:
    """The start that began the timeline, and created all memory anew: memory of an earlier one is stale, as on a host
    where the run was before.
    """
    return int(read(run).get("first_start", 0))


def begin_timeline(run: Path, start: int = 0) -> int:
    """Start a new timeline, with this start of its launch, and return its number."""
    found = read(run)
    if "timeline" not in found and (run / ROWS).exists():
        found["timeline"] = int(time.time())  # the record is gone: no row save may belong to the new timeline
    _write(run, {**found, "timeline": found.get("timeline", 0) + 1, "first_start": start})
    return timeline(run)


def add(run: Path, recovery: dict[str, Any]) -> None:
    """Append a recovery."""
    found = read(run)
    _write(run, {**found, "recoveries": [*found["recoveries"], recovery]})


def rows_saved(run: Path, server: int, seconds: float, cost: float) -> None:
    """Record how long an embedding PS's last save of all rows took (``seconds``, wall time) and what it cost (CPU
    seconds), because that must outlive its memory.
    """
    found = read(run)
    more = {name: {**found.get(name, {}), str(server): round(v, 6)} for name, v in ((SAVING, seconds), (COST, cost))}
    _write(run, {**found, **more})


class Taken(NamedTuple):
    """The durations of recoveries, and of saves of all rows during training. ``row_save_seconds`` is that of the
    slowest embedding PS, because all of them save at once, ``row_save_cost`` the highest; both are 0 before the first
    save.
    """

    recoveries: Sequence[dict[str, Any]]
    row_save_cost: float
    row_save_seconds: float


def taken(run: Path) -> Taken:
    """``Taken`` of a run; reads the file once."""
    found = read(run)
    cost, seconds = (max(map(float, found.get(name, {}).values()), default=0.0) for name in (COST, SAVING))
    return Taken(found["recoveries"], cost, seconds)


def amend(run: Path, more: dict[str, Any]) -> dict[str, Any]:
    """Add fields to the last record, and to its ``seconds``; returns the whole record."""
    found = read(run)
    last: dict[str, Any] = found["recoveries"][-1]
    last |= {**more, "seconds": {**last["seconds"], **more["seconds"]}}
    _write(run, found)
    return last


def outcome(run: Path, more: dict[str, Any]) -> dict[str, Any]:
    """The fields to add to the last record when training resumes, with the seconds taken to restore the state. Empty if
    this start is not a recovery.
    """
    if not (last := _without_outcome(run)):
        return {}
    at = last["seconds"]["process"] + last["seconds"].get("load", 0.0)  # the age of this process at that time
    restore = max(0.0, process_age() - at)
    return {**more, "at": last["at"], "seconds": {"restore": round(restore, 3)}}


def complete(run: Path, found: dict[str, Any]) -> dict[str, Any]:
    """Add an ``outcome`` to the record that it belongs to; returns the whole record, or an empty one if that is not the
    last or has its outcome already.
    """
    last = _without_outcome(run)
    return amend(run, found) if found and last.get("at") == found["at"] else {}


def _without_outcome(run: Path) -> dict[str, Any]:
    """The last record if it has no outcome yet; else an empty one."""
    found = read(run)["recoveries"]
    last: dict[str, Any] = found[-1] if found else {}
    return last if "restore" not in last.get("seconds", {"restore": 0}) else {}


def resumed(run: Path) -> list[dict[str, Any]]:
    """The records of recoveries after which training resumed. An earlier record without an outcome never gets one."""
    return [each for each in read(run)["recoveries"] if "restore" in each.get("seconds", {})]


def describe(record: dict[str, Any]) -> str:
    """The cost of a partial recovery, in a sentence."""
    parts = [
        f"{record['rows_reloaded']:,} embedding rows reloaded ("
        + ", ".join(f"{who} from {source}" for who, source in record["sources"].items())
        + f"), which miss {record['samples_lost']:,} samples"
        + ("" if record.get("updates_lost") is None else f" and {record['updates_lost']:,} updates")
    ] * bool(record["rows_reloaded"])
    if record["rows_dealt_again"]:
        parts.append(f"up to {record['rows_dealt_again']:,} rows of the data are trained on again")
    if record["accounts_lost"]:
        parts.append(f"gradients of {record['accounts_lost']} threads that were not pushed are lost")
    cost = "; ".join(parts) or "nothing but what follows from the ranks that live"
    return f"going on after {record['examples']:,} examples: {cost}. PLS is {record['pls']:.3g} so far"


def _write(run: Path, found: dict[str, Any]) -> None:
    atomic_file.write(run / RECOVERIES, json.dumps(found, indent=1) + "\n")
