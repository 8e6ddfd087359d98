"""Saves the rows of an embedding PS periodically, on a background thread, for partial recovery. A failed save is logged
and does not end the run. The save after a failure, or after a kill during a save, takes all rows, because the rows
selected for the interrupted one are marked as saved.
"""

from __future__ import annotations

import math
import os
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ssmpi.embedding.server import EmbeddingServer
from ssmpi.embedding.trackers import Tracker
from ssmpi.runtime.errors import DataError
from ssmpi.runtime.files.log import log
from ssmpi.runtime.host.clock import Clock
from ssmpi.runtime.mpi.failure import cause
from ssmpi.runtime.settings import SECONDS
from ssmpi.state.checkpoint.pending_save import NICENESS
from ssmpi.state.checkpoint.rows.records import UNKNOWN
from ssmpi.state.checkpoint.rows.row_store import RowStore

if TYPE_CHECKING:
    from ssmpi.runtime.mpi.rank_memory import RankMemory

POLL_SECONDS = 1.0  # to notice checkpoints
MOST_LINES = 20  # reported in one message


class _EndedError(Exception):
    """The run is over: a save in progress is abandoned."""


@dataclass(frozen=True)
class SaveSchedule:
    """When this ``fraction`` of the rows is saved. From one save of all rows to the next pass ``interval`` seconds, but
    at least ``least`` times what one takes, and no more than that after ``most_samples`` of all trainers. Saves of a
    fraction come at that fraction of each.
    """

    fraction: float
    interval: float
    least: float = 0.0
    most_samples: float = math.inf


class RowSaver:
    """Saves the rows of ``server`` that ``tracker`` selects, or all without a tracker, by a ``schedule``. ``earlier``
    is how long saving all rows took in earlier jobs, in seconds.
    """

    def __init__(
        self, store: RowStore, tracker: Tracker | None, server: EmbeddingServer, memory: RankMemory,
        schedule: SaveSchedule, earlier: float = 0.0,
    ) -> None:  # fmt: skip
        self._store, self._tracker, self._server, self._memory = store, tracker, server, memory
        self._schedule, self._fraction = schedule, schedule.fraction
        begun = -SECONDS if tracker else time.monotonic()  # without one the initial rows are the base
        note = memory.noted.get("row_saves") or {"at": begun, "seconds": earlier, "whole": True}
        self._at, self._seconds, self._whole = note["at"], note["seconds"], note["whole"]
        self._samples: int | None = note.get("samples")  # at ``_at``, if that is known
        self._remember()
        self._opened = self._warned = False
        self._checkpoint = server.checkpoint
        self._done, self._thread_is_done = threading.Event(), threading.Event()
        self._unreported: list[dict[str, Any]] = []
        store.go_on = self._go_on

    def run(self) -> None:
        """Save whenever due, until ``stop``. The body of a thread."""
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
        try:
            while not self._done.wait(min(max(self._seconds_left(), 0.0), POLL_SECONDS)):
                self._note_server()
                if self._seconds_left() <= 0:
                    self.save()
        finally:
            self._thread_is_done.set()

    def end(self) -> None:
        """Start no more saves."""
        self._done.set()

    def stop(self, seconds: float) -> None:
        """The run has ended normally, with a model or a checkpoint: remove the row saves. A save in progress ends
        within ``seconds``, unless its disk hangs.
        """
        self.end()
        if self._thread_is_done.wait(seconds):
            try:
                self._store.remove()
            except OSError as error:  # the next job starts a new timeline, in which they do not count
                log.warning(f"obsolete row saves are not removed: {error}")

    def take_lines(self) -> list[dict[str, Any]]:
        """Hand over the saves since the last call, as lines for ``metrics.jsonl`` with the duration for all rows."""
        found, self._unreported = self._unreported[:MOST_LINES], self._unreported[MOST_LINES:]
        return found

    @property
    def interval(self) -> float:
        """Seconds between saves, by the schedule."""
        return self._fraction * max(self._schedule.interval, self._schedule.least * self._seconds)

    def save(self) -> None:
        """Save once, and record what it took."""
        clock, at, samples = Clock(), time.monotonic(), self._server.samples
        try:
            self._open()
            self._store.checkpoint = self._server.checkpoint
            whole, self._whole = self._whole or not self._tracker, True
            self._remember()  # until they are written, the selected rows are not saved anywhere
            with self._server.arena.move_lock:
                line = self._save_all(samples) if whole else self._save_some(samples)
        except _EndedError:
            return
        except (OSError, DataError) as error:
            self._at, self._samples = at, samples
            self._remember()
            text = f"rows could not be saved, training continues; the next save takes all of them: {cause(error)}"
            log.warning(text)
            self._unreported.append({"error": text})
            return
        share = 1.0 if whole else self._fraction
        self._at, self._samples = at, samples
        self._whole, self._seconds = self._outdated, clock.wall / share
        self._remember()
        line |= {"write_seconds": clock.wall, "position": samples, "all_rows_seconds": self._seconds}
        self._unreported.append(line)
        log.info(
            f"rows saved: {line['rows']:,}, with {line['covered']:.1%} of what changed; {line['bytes']:,} bytes,"
            f" {clock.wall:.2f} s, after {samples:,} samples; the next in {self.interval:,.0f} s"
        )
        if not whole:
            self._judge(line["covered"])

    def _open(self) -> None:
        """Load the saves of an earlier process, to continue its increments."""
        if not (self._opened or self._whole):
            self._whole = True  # if it is damaged
            saved = self._store.load()
            self._whole = saved is None or saved.end < self._store.path.stat().st_size
        self._opened = True

    def _save_all(self, samples: int) -> dict[str, Any]:
        if self._tracker:
            self._tracker.forget()  # before rows are copied: concurrent updates count for the next save
        self._store.path.parent.mkdir(exist_ok=True)
        size = self._store.save_all(samples)
        return {"rows": self._server.arena.used, "bytes": size, "covered": 1.0}

    def _save_some(self, samples: int) -> dict[str, Any]:
        assert self._tracker
        selection = self._tracker.select()
        left = UNKNOWN if math.isnan(selection.left) else int(selection.left)
        size = self._store.save(selection.rows, samples, self._fraction, left)
        if self._store.increments_outweigh_base and not self._outdated:
            size += self._store.compact()
        return {"rows": len(selection.rows), "bytes": size, "covered": selection.share}

    @property
    def _outdated(self) -> bool:
        """Whether a new base of the live rows is due: increments cannot be merged, or a checkpoint is newer than the
        base, and after merging one could not tell which increments are newer than the checkpoint.
        """
        store, checkpoint = self._store, self._server.checkpoint
        return (
            bool(self._tracker)
            and store.increments_outweigh_base
            and (store.base_checkpoint < checkpoint or not store.can_compact)
        )

    def _note_server(self) -> None:
        """A checkpoint of all rows begins the interval anew; note after how many samples it began, once that is
        known.
        """
        server = self._server
        if server.checkpoint != self._checkpoint and not self._tracker:
            self._checkpoint, self._at, self._samples = server.checkpoint, time.monotonic(), server.samples
        if self._samples is None and server.samples >= 0:
            self._samples = server.samples

    def _seconds_left(self) -> float:
        """Seconds until the next save; none starts before the first trainer has reported the number of samples."""
        if self._samples is None or self._server.samples < 0:
            return POLL_SECONDS
        interval = self.interval
        if self._server.samples - self._samples >= self._fraction * self._schedule.most_samples:
            interval = min(interval, self._fraction * self._schedule.least * self._seconds)
        return self._at + interval - time.monotonic()

    def _remember(self) -> None:
        note = {"at": self._at, "seconds": self._seconds, "whole": self._whole, "samples": self._samples}
        self._memory.note(row_saves=note)

    def _go_on(self) -> None:
        if self._done.is_set():
            raise _EndedError

    def _judge(self, share: float) -> None:
        """Warn once if priority does not pay: if the selected rows cover less than twice what a random selection
        would.
        """
        fraction = self._fraction
        if share < fraction * (2 - fraction) and not self._warned:
            self._warned = True
            log.warning(
                f"the {fraction:.1%} of the rows that a priority save takes have {share:.1%} of what changes: rows are"
                " used nearly alike, and saving all of them loses less; set checkpoint.priority = 'none'"
            )
