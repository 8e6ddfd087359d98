"""Saves checkpoints: while training is paused every trainer and every embedding PS starts writing its own file, and the
first trainer commits them. Background threads write, so that neither training nor the end of the job waits for a hung
disk.
"""

from __future__ import annotations

import concurrent.futures
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ssmpi.runtime.errors import STOPPED, DataError
from ssmpi.runtime.files.log import log
from ssmpi.runtime.files.run_files import MODEL, checkpoint_number
from ssmpi.runtime.host.clock import Clock
from ssmpi.runtime.mpi import signals
from ssmpi.runtime.mpi.background import start_background
from ssmpi.runtime.mpi.failure import FATAL_REPORT_SECONDS, cause
from ssmpi.runtime.mpi.waiting import SUPERVISOR, Backoff, WaitOptions, wait
from ssmpi.state.checkpoint import store
from ssmpi.state.checkpoint.model_saver import STEPS, ModelSaver
from ssmpi.state.checkpoint.pending_save import (
    Outcome,
    PendingCheckpoint,
    TrainerOutcomes,
    commit_or_remove,
    in_time,
    make_room,
    past_limit,
    report_outcomes,
    written_in_background,
)

if TYPE_CHECKING:
    from ssmpi.config import Config
    from ssmpi.embedding.shards import Tables
    from ssmpi.runtime.mpi.rank_memory import RankMemory
    from ssmpi.runtime.mpi.world import World
    from ssmpi.runtime.run_options import CheckpointOptions
    from ssmpi.runtime.stop import Stop
    from ssmpi.state.checkpoint.files import Dataset
    from ssmpi.state.checkpoint.trainer_state import RunLog, Snapshot

POLL_SECONDS = 0.2  # between two polls whether the embedding PSs have written their files
REMOVAL_SECONDS = 30.0  # that the end of a run waits for the removal of old checkpoints


class CheckpointTimer:
    """Says when the next checkpoint is due. Its clock survives a kill and counts from the last committed checkpoint: a
    job that is killed often must still save. Both it and the memory end with the host's boot.
    """

    def __init__(self, options: CheckpointOptions, examples: int, memory: RankMemory) -> None:
        self._options, self._memory = options, memory
        self.begun = memory.noted.get("begun", 0)  # the number of the newest checkpoint, committed or not
        self.saved(examples)
        if kept := memory.noted.get("saved"):
            self._examples, self._at = kept
        else:
            self.committed()

    def saved(self, examples: int) -> None:
        """A checkpoint was started after this many examples, or failed: either way the interval to the next one starts
        now.
        """
        self._examples, self._at = examples, time.monotonic()

    def committed(self) -> None:
        """The checkpoint that was started last is committed."""
        self._memory.note(saved=(self._examples, self._at))

    def begin(self, number: int) -> None:
        """The folder of a checkpoint is made: no later one gets its number, not even after a kill."""
        self.begun = number
        self._memory.note(begun=number)

    def now(self, examples: int) -> bool:
        """Whether one is due after this many examples."""
        options = self._options
        late = bool(options.every_minutes) and time.monotonic() - self._at >= 60 * options.every_minutes
        return late or (bool(options.every_examples) and examples - self._examples >= options.every_examples)


class CheckpointManager:
    """One trainer's part in saving. Every trainer calls ``save`` and ``save_and_stop`` while training is paused, with a
    function that returns a snapshot of its state; only the first trainer has a ``log``, calls ``poll`` regularly, and
    asks whether a checkpoint is ``due``, as the ``timer`` says. ``stop`` says whether the run is to end.
    """

    def __init__(
        self, config: Config, world: World, tables: Tables, stop: Stop, timer: CheckpointTimer,
        log: RunLog | None,
    ) -> None:  # fmt: skip
        self._run, self._options, self._waiting, self._world = config.run.path, config.checkpoint, config.waiting, world
        self._tables, self._stop, self._timer, self._log = tables, stop, timer, log
        self._store = store.Store(self._run)
        self._newest = next(reversed(self._store.committed()), None)  # cached: ending a job must not access a disk
        self._writing: PendingCheckpoint | None = None
        self._mine: Future[None] | None = None  # this trainer's files, and its report about them
        self._making: Future[int] | None = None  # a folder
        self._removing: Future[None] | None = None  # older checkpoints

    def poll(self) -> None:
        """Commit the checkpoint being written, once its files are complete. Never waits for the disk."""
        writing = self._writing
        if writing and time.monotonic() - writing.asked >= POLL_SECONDS:
            self._look_after(writing)

    def due(self, examples: int) -> bool:
        """Whether the next checkpoint is due after ``examples`` of all trainers."""
        if not self._log:
            return False
        at_the_disk = any(future and not future.done() for future in (self._making, self._removing))
        return not self._writing and not at_the_disk and self._timer.now(examples)

    def save(self, take: Callable[[], Snapshot], quiesce_seconds: float) -> None:
        """Save a checkpoint, after which training continues; pausing for it took ``quiesce_seconds``. A failure is
        reported and does not end the run: the next checkpoint is tried when due.
        """
        self._begin(take, quiesce_seconds, background=self._options.background)

    def save_and_stop(self, take: Callable[[], Snapshot]) -> None:
        """Save a last checkpoint, within its time budget; DataError if it cannot be written."""
        last_to_speak = FATAL_REPORT_SECONDS if self._world.index else 0.0  # the first trainer reports first
        timer = threading.Timer(self._options.stop_budget_seconds + last_to_speak, self._out_of_budget)
        timer.daemon = True
        timer.start()
        try:
            self.finish()
            self._begin(take, 0.0, background=False)
        finally:
            timer.cancel()

    def finish(self) -> None:
        """Wait until the checkpoint being written is committed; DataError after the time limit."""
        pause = Backoff(SUPERVISOR)
        while writing := self._writing:
            self._look_after(writing)
            if self._writing and writing.late:
                raise DataError(f"{self._lateness(writing)}. {self._what_there_is()}")
            pause.nap()
        if self._removing and not concurrent.futures.wait([self._removing], REMOVAL_SECONDS).done:
            log.warning(f"the job ends while older checkpoints in {self._store.folder} are still being removed")

    def save_model(self, model: Snapshot) -> None:
        """Write the finished model. On the first trainer only."""
        self.finish()
        self._model_saver().save(model, self._run / MODEL)

    def save_best(self, model: Snapshot, place: Path) -> None:
        """Write the present model; DataError or OSError, without retrying, if that fails. On the first trainer only."""
        self.finish()
        self._model_saver().attempt(model, place)

    def _model_saver(self) -> ModelSaver:
        return ModelSaver(self._store, self._tables, self._options.limit_seconds, self._stop, self._what_there_is())

    def wait_for_the_first(self) -> None:
        """Wait until the first trainer has reached this point."""
        if self._mine:
            concurrent.futures.wait([self._mine], self._options.limit_seconds)
        self._meet(STEPS)

    def wait_options(self, steps: int = STEPS) -> WaitOptions:
        """How long to wait for the first trainer, which may be writing for a long time under limits of its own."""
        limit = steps * self._options.limit_seconds
        return replace(self._waiting, time_limit_seconds=limit + self._waiting.time_limit_seconds)

    def _meet(self, steps: int = 1) -> None:
        whom = f"the first trainer (to save into {self._store.folder.parent})"
        wait(self._world.trainers.ibarrier(), self.wait_options(steps), whom, "checkpoint.limit_seconds")

    def _begin(self, take: Callable[[], Snapshot], quiesce_seconds: float, *, background: bool) -> None:
        """Make the trainers and the embedding PSs start writing their files."""
        clock, mine = Clock(), take()
        own = sum(values.nbytes for values in mine.arrays.values())
        files = np.array([own], np.float64)  # of all trainers: members of a group own unequal parts
        wait(self._world.trainers.iallreduce(files), self._waiting, "the other trainers (to save)")
        number = 0 if self._world.index else self._make_folder(mine.nbytes + int(files[0]))
        reports = TrainerOutcomes(self._world.control) if number else None  # before a trainer can report anything
        folder = self._agree_on_folder(number)
        if folder:
            self._write_mine(folder, mine)
        if folder and reports:
            self._writing = PendingCheckpoint(folder, reports, mine.state, clock)
            self._tables.begin_save(folder, self._options.limit_seconds, background=background)
            if not background:
                self.finish()
        self._meet()
        if self._log:
            self._timer.saved(mine.examples)
            if self._writing:
                self._writing.cost = quiesce_seconds + clock.wall
            self._log.pause(quiesce_seconds + clock.wall)

    def _make_folder(self, needed: int) -> int:
        """On the first trainer: make the folder of the next checkpoint, on a disk with room for ``needed`` bytes, and
        return its number; 0 if that fails. No number is used twice, not even that of one that failed.
        """

        def make() -> int:
            self._store.clear()
            make_room(self._store, needed, self._store.folder)
            return checkpoint_number(self._store.begin(self._timer.begun))

        self._making = making = start_background("folder", make)
        try:
            number = in_time(making, self._options.limit_seconds, f"made a folder in {self._store.folder}")
        except (OSError, DataError) as error:
            self._failed(cause(error), 0.0)
            return 0
        self._timer.begin(number)
        return number

    def _agree_on_folder(self, number: int) -> Path | None:
        agreed, whom = np.array([number], np.int64), f"trainer 0 (to make a folder in {self._store.folder})"
        wait(self._world.trainers.ibcast(agreed), self.wait_options(1), whom, "checkpoint.limit_seconds")
        return self._store.path(int(agreed[0])) if agreed[0] else None

    def _write_mine(self, folder: Path, mine: Snapshot) -> None:
        """Start writing a copy of this trainer's state, and report the outcome to the first trainer."""
        arrays: list[Dataset] = [(name, values.copy(), {}) for name, values in mine.arrays.items()]
        own = [(folder / f"trainer-{self._world.index:04}.h5", arrays)]
        if self._log:
            own.append((folder / "dense.h5", [(name, values.copy(), place) for name, values, place in mine.dense]))

        def write() -> None:
            outcomes = [written_in_background(path, datasets) for path, datasets in own]
            report_outcomes(self._world.control, outcomes, self._waiting)

        self._mine = start_background("save", write)

    def _look_after(self, writing: PendingCheckpoint) -> None:
        """Commit a checkpoint, on a background thread, once all its files are written."""
        writing.asked = time.monotonic()
        if not writing.committing and (outcomes := writing.outcomes(self._tables)) is not None:
            self._commit(writing, outcomes)
        if writing.committing and writing.committing.done():
            self._writing = None
            self._end(writing, writing.committing)
        elif writing.step.wall > self._options.limit_seconds and not writing.late:
            writing.late = True
            until = "No other checkpoint can be written until it finishes"
            log.error(f"error: {self._lateness(writing)}. {until}. {self._what_there_is()}")

    def _commit(self, writing: PendingCheckpoint, outcomes: list[Outcome]) -> None:
        writing.written()
        writing.committing = start_background("commit", commit_or_remove, writing.folder, outcomes, writing.state)

    def _end(self, writing: PendingCheckpoint, committing: Future[store.CheckpointManifest]) -> None:
        try:
            manifest = committing.result()
        except (OSError, DataError) as error:
            self._failed(cause(error), writing.cost)
            return
        self._newest = writing.folder
        self._timer.committed()
        signals.expect_save(writing.clock.wall)
        self._committed(writing, manifest)
        self._removing = start_background("retire", self._store.retire, self._options.keep)

    def _committed(self, writing: PendingCheckpoint, manifest: store.CheckpointManifest) -> None:
        assert self._log
        line = writing.line(manifest)
        self._log.saved(line)
        self._log.say(
            f"{line['name']} committed at {line['position']:,} examples: {line['bytes'] / 1e6:,.1f} MB in"
            f" {line['write_seconds']:.2f} s, training was paused for {writing.cost:.2f} s (O_save)"
        )

    def _failed(self, text: str, cost: float) -> None:
        """On the first trainer: a checkpoint could not be written. That ends the job only if it was asked to stop."""
        assert self._log
        there = self._what_there_is()
        if self._stop.stopped:
            raise DataError(f"no checkpoint could be saved, and the job was asked to stop: {text}. {there}")
        log.error(f"error: no checkpoint could be saved, training continues: {text}. {there}")
        self._log.saved({"error": text, "O_save": cost})

    def _out_of_budget(self) -> None:
        budget = self._options.stop_budget_seconds
        text = (
            f"error: no checkpoint within checkpoint.stop_budget_seconds = {budget:g}: the job ends without it. "
            f"{self._what_there_is()}; raise the budget, or look at the disk of {self._store.folder}"
        )
        self._world.abort(text, STOPPED)

    def _lateness(self, writing: PendingCheckpoint) -> str:
        return f"{writing.awaited(self._tables)} after {past_limit(self._options.limit_seconds)}"

    def _what_there_is(self) -> str:
        return f"{self._newest} is the newest committed one" if self._newest else "There is no earlier one"
