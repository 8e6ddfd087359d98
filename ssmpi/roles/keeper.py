"""Saves a run at rest: every trainer and every embedding PS writes a file of its own, the first trainer commits them."""

from __future__ import annotations

import contextlib
import shutil
import threading
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ssmpi.checkpoint import files, store
from ssmpi.checkpoint.policy import Due
from ssmpi.comm.failure import cause
from ssmpi.comm.waiting import SUPERVISOR, Patience, Pause, wait
from ssmpi.errors import STOPPED, DataError
from ssmpi.log import log
from ssmpi.roles import snapshot
from ssmpi.roles.progress import Clock
from ssmpi.roles.weights import MODEL, put

if TYPE_CHECKING:
    from ssmpi.data.position import Position
    from ssmpi.roles.trainer import Trainer

POLL_SECONDS = 0.2  # between two questions whether the embedding PSs have written their files

Outcome = dict[str, Any]  # of writing a file: an ``Entry``, or ``error``


@dataclass
class Writing:
    """A checkpoint that is not committed yet, on the first trainer. ``entries`` are the files of the trainers."""

    folder: Path
    entries: list[Outcome]
    state: dict[str, Any]
    clock: Clock
    stood_still: float = 0.0
    asked: float = 0.0
    late: bool = False


class Keeper:
    """One trainer's part in saving. Every trainer calls ``save`` and ``save_model``, at rest; only the first knows ``due``."""

    def __init__(self, trainer: Trainer) -> None:
        self._trainer, self._options = trainer, trainer.config.checkpoint
        self._store = store.Store(trainer.folder)
        self._due = Due(self._options, trainer.progress.of_all)
        self._writing: Writing | None = None

    def due(self) -> bool:
        """Whether the next checkpoint is due; commits the one being written as soon as it is."""
        if self._trainer.world.index:
            return False
        writing = self._writing
        if writing and time.monotonic() - writing.asked >= POLL_SECONDS:
            self._commit_if_written(writing)
        return self._writing is None and self._due.now(self._trainer.progress.of_all)

    def save(self, position: Position, came_to_rest: float) -> None:
        """A checkpoint while the run goes on; it has cost ``came_to_rest`` seconds already.

        One that fails is reported, and the next one due is another chance.
        """
        self._begin(position, came_to_rest, background=self._options.background)

    def save_and_stop(self, position: Position) -> None:
        """A last checkpoint, within the budget for it; DataError if it cannot be written."""
        budget = self._options.stop_budget_seconds
        text = (
            f"error: no checkpoint within checkpoint.stop_budget_seconds = {budget:g}: the job ends without it. "
            f"{self._what_there_is()}; raise the budget, or look at the disk of {self._store.folder}"
        )
        timer = threading.Timer(budget, self._trainer.world.abort, (text, STOPPED))
        timer.daemon = True
        timer.start()
        try:
            self.finish()
            self._begin(position, 0.0, background=False)
        finally:
            timer.cancel()

    def finish(self) -> None:
        """Wait until the checkpoint being written is committed; DataError when that takes longer than it may."""
        pause = Pause(SUPERVISOR)
        while writing := self._writing:
            self._commit_if_written(writing)
            if self._writing and writing.late:
                raise DataError(f"{self._lateness(writing)}. {self._what_there_is()}")
            pause.nap()

    def save_model(self, vector: np.ndarray) -> None:
        """Write the finished model. On the first trainer only."""
        self.write_model(vector, self._trainer.folder / MODEL)

    def write_model(self, vector: np.ndarray, place: Path) -> None:
        """Write the model as it is now beside its place and put it there when it is whole. On the first trainer only."""
        self.finish()
        results = self._trainer.results
        assert results
        beside = place.with_name(f".{place.name}.tmp")
        shutil.rmtree(beside, ignore_errors=True)
        beside.mkdir(parents=True)
        dense = asdict(files.write(beside / "dense.h5", self._trainer.replica.datasets(vector)))
        self._trainer.tables.transport.begin_save(beside, self._options.limit_seconds, background=False)
        entries = checked([dense, *(self._trainer.tables.transport.saved() or [])])
        store.commit(beside, store.Manifest(entries, {"examples": int(results.logbook.totals()["examples"])}))
        put(beside, place)

    @property
    def patience(self) -> Patience:
        """How long to wait for somebody who saves."""
        return replace(self._trainer.config.waiting, time_limit_seconds=self._options.limit_seconds)

    def wait_for_the_first(self) -> None:
        """Wait until the first trainer has come here, which may be writing for long."""
        wait(self._trainer.world.trainers.ibarrier(), self.patience, "the first trainer (to save)")

    def _begin(self, position: Position, came_to_rest: float, *, background: bool) -> None:
        """Write the trainers' files and start the embedding PSs on theirs."""
        trainer, clock = self._trainer, Clock()
        vector = trainer.synchronizer.model()
        folder = trainer.world.trainers.share(self._folder())
        mine = self._write_mine(folder, vector) if folder else []
        outcomes = [outcome for each in trainer.world.trainers.gather(mine) for outcome in each]
        if trainer.results and folder:
            self._writing = Writing(folder, outcomes, snapshot.state(trainer, position), clock)
            trainer.tables.transport.begin_save(folder, self._options.limit_seconds, background=background)
            if not background:
                self.finish()
        self.wait_for_the_first()
        if trainer.results:
            self._due.saved(trainer.progress.of_all)
            if self._writing:
                self._writing.stood_still = came_to_rest + clock.wall
            trainer.results.logbook.pause(came_to_rest + clock.wall)

    def _folder(self) -> Path | None:
        """On the first trainer a folder for the next checkpoint, None if there cannot be one."""
        if self._trainer.world.index:
            return None
        try:
            return self._store.begin()
        except OSError as error:
            self._failed(f"{cause(error)}", Clock())
            return None

    def _write_mine(self, folder: Path, vector: np.ndarray) -> list[Outcome]:
        trainer = self._trainer
        name = f"trainer-{trainer.world.index:04}.h5"
        try:
            written = [files.write(folder / name, [(k, v, {}) for k, v in snapshot.arrays(trainer).items()])]
            if trainer.results:
                written.append(files.write(folder / "dense.h5", trainer.replica.datasets(vector)))
        except Exception as error:
            return [{"who": trainer.world.who, "error": cause(error)}]
        return [asdict(entry) for entry in written]

    def _commit_if_written(self, writing: Writing) -> None:
        writing.asked = time.monotonic()
        tables = self._trainer.tables.transport.saved()
        if tables is None:
            if writing.clock.wall > self._options.limit_seconds and not writing.late:
                writing.late = True
                log.error(f"error: {self._lateness(writing)}. Until it is, no other can be. {self._what_there_is()}")
            return
        self._writing = None
        try:
            cost = writing.stood_still or writing.clock.wall
            writing.state["logbook"]["checkpoints"] += 1  # this one counts too, for who goes on from it
            writing.state["logbook"]["O_save"] += cost
            manifest = store.Manifest(checked([*writing.entries, *tables]), writing.state)
            store.commit(writing.folder, manifest)
        except (OSError, DataError) as error:
            with contextlib.suppress(OSError):
                shutil.rmtree(writing.folder)  # what there is of it may be what fills the disk
            self._failed(cause(error), writing.clock)
            return
        self._committed(writing, manifest, cost)
        self._store.retire(self._options.keep)

    def _committed(self, writing: Writing, manifest: store.Manifest, cost: float) -> None:
        results = self._trainer.results
        assert results
        seconds = writing.clock.wall
        results.logbook.saved({
            "name": writing.folder.name, "O_save": cost, "write_seconds": seconds, "bytes": manifest.bytes,
            "position": manifest.state["examples"],
        })  # fmt: skip
        results.logbook.say(
            f"{writing.folder.name} committed at {manifest.state['examples']:,} examples: {manifest.bytes / 1e6:,.1f} MB in "
            f"{seconds:.2f} s, training stood still for {cost:.2f} s (O_save)"
        )

    def _failed(self, text: str, clock: Clock) -> None:
        """On the first trainer: a checkpoint that could not be written ends a job that stops, and only that."""
        there = self._what_there_is()
        if self._trainer.stopped:
            raise DataError(f"no checkpoint could be saved, and the job was asked to stop: {text}. {there}")
        log.error(f"error: no checkpoint could be saved, training goes on: {text}. {there}")
        results = self._trainer.results
        assert results
        results.logbook.saved({"error": text, "O_save": clock.wall})

    def _lateness(self, writing: Writing) -> str:
        return (
            f"{writing.folder} is not written after checkpoint.limit_seconds = {self._options.limit_seconds:g}: look at its "
            "disk"
        )

    def _what_there_is(self) -> str:
        there = self._store.committed()
        return f"{there[-1]} is the newest committed one" if there else "There is no earlier one"


def checked(outcomes: list[Outcome]) -> tuple[files.Entry, ...]:
    """Entries of all files; DataError if one could not be written."""
    for outcome in outcomes:
        if "error" in outcome:
            raise DataError(f"{outcome.get('who', 'trainer 0')}: {outcome['error']}")
    return tuple(files.Entry(o["file"], o["bytes"], o["checksum"]) for o in outcomes)
