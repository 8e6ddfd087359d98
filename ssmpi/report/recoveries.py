"""``recoveries.json``: how often a run was started again after a kill, and how it went on each time. It also names the
launch that the run belongs to: only that one's memory is its own. Beside them, what has to outlive
every memory: the timeline of the rows that are saved beside training, and what saving them takes.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from ssmpi.core import atomic_file
from ssmpi.core.run_files import RECOVERIES

SAVING, COST = "row_save_seconds", "row_save_costs"


def read(run: Path) -> dict[str, Any]:
    """``launch``, its name; ``recoveries``, a list. The same of a run that nobody has started yet where there is no
    such file, or none that can be read.
    """
    try:
        found = json.loads((run / RECOVERIES).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        found = None
    match found:
        case {"launch": str(), "recoveries": list()}:
            return found
        case _:
            return {"launch": "", "recoveries": []}


def begin(run: Path, launch: str) -> str:
    """From now on the run belongs to a launch; the name of the one that it belonged to, empty if there was none."""
    found = read(run)
    _write(run, {**found, "launch": launch})
    return str(found["launch"])


def timeline(run: Path) -> int:
    """How often the run has gone back to a checkpoint, or to the beginning, the first start included: rows that were
    saved beside training in an earlier timeline are those of a future that did not come.
    """
    return int(read(run).get("timeline", 0))


def begin_timeline(run: Path) -> int:
    """The number of one more."""
    _write(run, {**read(run), "timeline": timeline(run) + 1})
    return timeline(run)


def add(run: Path, recovery: dict[str, Any]) -> None:
    """One more."""
    found = read(run)
    _write(run, {**found, "recoveries": [*found["recoveries"], recovery]})


def rows_saved(run: Path, server: int, seconds: float, cost: float) -> None:
    """Remember what saving all rows of an embedding PS beside training has taken last, in ``seconds`` from begin to
    end, and its ``cost`` in seconds of a processor: that outlives its memory.
    """
    found = read(run)
    more = {name: {**found.get(name, {}), str(server): round(v, 6)} for name, v in ((SAVING, seconds), (COST, cost))}
    _write(run, {**found, **more})


class Taken(NamedTuple):
    """What recoveries, by their records, and saves of all rows beside training have taken. ``row_save_seconds`` is of
    the slowest embedding PS, because all of them save at once, ``row_save_cost`` of the one where it is highest; both
    are 0 where none has saved.
    """

    recoveries: Sequence[dict[str, Any]]
    row_save_cost: float
    row_save_seconds: float


def taken(run: Path) -> Taken:
    """The same of a run; reads the file once."""
    found = read(run)
    cost, seconds = (max(map(float, found.get(name, {}).values()), default=0.0) for name in (COST, SAVING))
    return Taken(found["recoveries"], cost, seconds)


def amend(run: Path, more: dict[str, Any]) -> dict[str, Any]:
    """Add to the last one what came out meanwhile, to its ``seconds`` too; the whole record."""
    found = read(run)
    last: dict[str, Any] = found["recoveries"][-1]
    last |= {**more, "seconds": {**last["seconds"], **more["seconds"]}}
    _write(run, found)
    return last


def outcome(run: Path, more: dict[str, Any]) -> dict[str, Any]:
    """Training goes on after the last one: what that adds to its record, with the seconds that it took to restore the
    state. Empty if this start is no recovery.
    """
    if not (last := _without_outcome(run)):
        return {}
    restore = (datetime.now(UTC) - datetime.fromisoformat(last["at"])).total_seconds()
    return {**more, "at": last["at"], "seconds": {"restore": round(restore, 3)}}


def complete(run: Path, found: dict[str, Any]) -> dict[str, Any]:
    """Add an ``outcome`` to the record that it belongs to; the whole record, an empty one if it is not the last or has
    it already.
    """
    last = _without_outcome(run)
    return amend(run, found) if found and last.get("at") == found["at"] else {}


def _without_outcome(run: Path) -> dict[str, Any]:
    """The last record, if training has not gone on after it, or that is not written there; else an empty one."""
    found = read(run)["recoveries"]
    last: dict[str, Any] = found[-1] if found else {}
    return last if "restore" not in last.get("seconds", {"restore": 0}) else {}


def resumed(run: Path) -> list[dict[str, Any]]:
    """The records of those after which training has gone on: no other becomes one of them once a later one is there."""
    return [each for each in read(run)["recoveries"] if "restore" in each.get("seconds", {})]


def describe(record: dict[str, Any]) -> str:
    """What a partial recovery has cost, in a sentence."""
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
