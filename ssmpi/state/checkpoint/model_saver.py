"""Writes the finished model, the result of hours: each step has a time limit, and a full disk is retried."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, TypeVarTuple

from ssmpi.runtime.errors import DataError
from ssmpi.runtime.files.log import log
from ssmpi.runtime.files.run_files import OPTIMIZER
from ssmpi.runtime.host.clock import Clock
from ssmpi.runtime.mpi.background import start_background
from ssmpi.runtime.mpi.failure import NO_ROOM, cause
from ssmpi.runtime.mpi.waiting import SUPERVISOR, Backoff
from ssmpi.state.checkpoint import store
from ssmpi.state.checkpoint.model_files import DENSE
from ssmpi.state.checkpoint.pending_save import (
    FullDiskError,
    Outcome,
    checked,
    in_time,
    make_anew,
    make_room,
    past_limit,
    put_in_place,
    written,
)

if TYPE_CHECKING:
    from ssmpi.embedding.shards import Tables
    from ssmpi.runtime.stop import Stop
    from ssmpi.state.checkpoint.trainer_state import Snapshot

POLL_SECONDS = 0.2  # between two checks whether the job is asked to stop
ROOM_SECONDS = 10.0  # between two attempts to save a model for which there was no room
STEPS = 7  # of saving it, each with a time limit of its own

T = TypeVar("T")
Arguments = TypeVarTuple("Arguments")


class ModelSaver:
    """Used by the first trainer. ``there`` says which checkpoint is left if the model cannot be saved."""

    def __init__(self, checkpoints: store.Store, tables: Tables, limit_seconds: float, stop: Stop, there: str) -> None:
        self._store, self._tables, self._limit = checkpoints, tables, limit_seconds
        self._stop, self._there, self._said = stop, there, False

    def save(self, model: Snapshot, place: Path) -> None:
        """Write the finished model under a temporary name and rename it when it is complete. If the disk is full,
        remove older checkpoints, then retry within the time limit of a save in case space becomes free.
        """
        clock, beside = Clock(), self._beside(place)
        self._in_time(beside, shutil.rmtree, beside, True)  # leftovers of an earlier job
        while True:
            try:
                self.attempt(model, place)
                return
            except (FullDiskError, OSError) as error:
                if isinstance(error, OSError) and error.errno not in NO_ROOM:
                    raise
                self._wait_for_room(cause(error), clock)

    def attempt(self, model: Snapshot, place: Path) -> None:
        """Make room and write the model; DataError, or OSError of a full disk, if that fails."""
        self._in_time(place, make_room, self._store, model.nbytes, place)
        self._write(model, place)

    def _write(self, model: Snapshot, place: Path) -> None:
        beside = self._beside(place)
        self._in_time(beside, make_anew, beside)
        try:
            found = {DENSE: model.dense, **({OPTIMIZER: model.optimizer} if model.optimizer else {})}
            own = [self._in_time(beside / name, written, beside / name, each) for name, each in found.items()]
            self._tables.begin_save(beside, self._limit, background=False)
            entries = checked([*own, *self._saved()])
            self._in_time(place, put_in_place, beside, place, store.CheckpointManifest(entries, model.state))
        finally:
            self._in_time(beside, shutil.rmtree, beside, True)  # the partial file may be what fills the disk

    def _saved(self) -> list[Outcome]:
        """The outcomes of the tables' files, once all are written; DataError after the time limit."""
        clock, pause = Clock(), Backoff(SUPERVISOR)
        while (saved := self._tables.saved()) is None:
            if clock.wall > self._limit:
                raise DataError(f"{self._tables.awaited()} after {past_limit(self._limit)}")
            pause.nap()
        return saved

    def _wait_for_room(self, why: str, clock: Clock) -> None:
        """Wait before a retry; DataError after the time limit of a save, or if the job is asked to stop."""
        limit = self._limit
        if self._stop.stopping or clock.wall > limit:
            raise DataError(f"the model is not saved: {why}. {self._there}; --resume trains the rest again")
        if not self._said:
            self._said = True
            log.error(
                f"error: training is done, but the model cannot be saved: {why}. It stays in memory, and saving it is"
                f" retried every {ROOM_SECONDS:g} s for checkpoint.limit_seconds = {limit:g}"
            )
        until = time.monotonic() + ROOM_SECONDS
        while time.monotonic() < until and not self._stop.stopping:
            time.sleep(POLL_SECONDS)

    @staticmethod
    def _beside(place: Path) -> Path:
        return place.with_name(f".{place.name}.tmp")

    def _in_time(self, path: Path, body: Callable[[*Arguments], T], *arguments: *Arguments) -> T:
        return in_time(start_background("save", body, *arguments), self._limit, f"written {path}")
