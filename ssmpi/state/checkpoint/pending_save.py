"""A checkpoint that is being written: background threads write the files of trainers and embedding PSs, so that a slow
or hung disk blocks neither training nor messages.
"""

from __future__ import annotations

import concurrent.futures
import json
import os
import shutil
import threading
from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from ssmpi.embedding import wire
from ssmpi.embedding.shards import Tables
from ssmpi.runtime.errors import DataError
from ssmpi.runtime.files.log import log
from ssmpi.runtime.files.run_files import MODEL
from ssmpi.runtime.host.clock import Clock
from ssmpi.runtime.mpi.failure import NO_ROOM, cause
from ssmpi.runtime.mpi.waiting import WaitOptions, wait
from ssmpi.state.checkpoint import disk, files, store
from ssmpi.state.checkpoint.model_files import move_into_place
from ssmpi.state.checkpoint.store import CheckpointManifest, Store

if TYPE_CHECKING:
    from ssmpi.runtime.mpi.messages import Conversation

SAVED = 1002  # tag of the outcome of a trainer's files, in the control conversation
NICENESS = 10  # of a writing thread: on a full node it must not take a core from training
LONGEST_ERROR = 1200
SPARE = 1 << 20  # bytes that a save leaves free, for manifests, results and logs

T = TypeVar("T")
Outcome = dict[str, Any]  # of writing a file: an ``Entry``, or ``error`` and whether the disk is ``full``


class FullDiskError(DataError):
    """There is no room for a file."""


def written(path: Path, datasets: Iterable[files.Dataset]) -> Outcome:
    """Write a file and return the outcome."""
    try:
        return asdict(files.write(path, datasets))
    except Exception as error:  # the first trainer decides what to do about it
        full = isinstance(error, OSError) and error.errno in NO_ROOM
        return {"error": cause(error)[:LONGEST_ERROR], "full": full}


def written_in_background(path: Path, datasets: Iterable[files.Dataset]) -> Outcome:
    """As ``written``, on a low-priority thread."""
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
    return written(path, datasets)


def checked(outcomes: Iterable[Outcome]) -> tuple[files.Entry, ...]:
    """Entries of all files; DataError if one could not be written."""
    found = []
    for outcome in outcomes:
        if "error" in outcome:
            text = f"{outcome.get('who', 'trainer 0')}: {outcome['error']}"
            raise FullDiskError(text) if outcome.get("full") else DataError(text)
        found.append(files.Entry(outcome["file"], outcome["bytes"], outcome["checksum"]))
    return tuple(found)


def past_limit(limit_seconds: float) -> str:
    """The words for exceeding the limit."""
    return f"checkpoint.limit_seconds = {limit_seconds:g}: look at the disk of that rank"


def in_time(future: Future[T], limit_seconds: float, what: str) -> T:
    """The result of a disk operation of the first trainer; DataError after the time limit."""
    if not concurrent.futures.wait([future], limit_seconds).done:
        raise DataError(f"trainer 0 has not {what} after {past_limit(limit_seconds)}")
    return future.result()


def report_outcomes(control: Conversation, outcomes: list[Outcome], waiting: WaitOptions) -> None:
    """Report the outcome of this trainer's files to the first trainer (also if it is this one)."""
    text = np.empty(wire.TEXT, np.uint8)
    wire.text(json.dumps(outcomes).encode(), text)
    wait(control.isend(text, 0, SAVED), waiting, "trainer 0 (to hear that a file is written)")


class TrainerOutcomes:
    """On the first trainer: receives each trainer's outcome. Create it before any trainer is asked to write files."""

    def __init__(self, control: Conversation) -> None:
        self._names, self._texts = control.names, np.empty((control.size, wire.TEXT), np.uint8)
        self._requests = [control.irecv(text, k, SAVED) for k, text in enumerate(self._texts)]

    def missing(self) -> list[int]:
        """The trainers that have not reported yet."""
        return [k for k, request in enumerate(self._requests) if not request.Test()]

    def outcomes(self) -> list[Outcome]:
        """The outcomes of all files."""
        each = zip(self._names, map(wire.read_text, self._texts), strict=True)
        return [{"who": who, **outcome} for who, text in each for outcome in json.loads(text)]


@dataclass
class PendingCheckpoint:
    """On the first trainer: a checkpoint that is not committed yet. ``step`` is the clock of the present step, which
    has the time limit: its files are being written, then it is committed. ``cost`` is the time in seconds that training
    stood still.
    """

    folder: Path
    reports: TrainerOutcomes
    state: dict[str, Any]
    clock: Clock
    step: Clock = field(default_factory=Clock)
    cost: float = 0.0
    asked: float = 0.0
    late: bool = False
    committing: Future[CheckpointManifest] | None = None

    def written(self) -> None:
        """Its files are written: record what they have cost for a job that resumes from it."""
        self.step, self.cost = Clock(), self.cost or self.clock.wall
        logbook = self.state["logbook"]
        logbook |= {"O_save": logbook["O_save"] + self.cost, "checkpoints": logbook["checkpoints"] + 1}

    def line(self, manifest: CheckpointManifest) -> dict[str, Any]:
        """Its line in ``metrics.jsonl``, once it is committed."""
        size, position = manifest.bytes, manifest.state["examples"]
        written = {"write_seconds": self.clock.wall, "bytes": size, "position": position}
        return {"name": self.folder.name, "O_save": self.cost, **written}

    def outcomes(self, tables: Tables) -> list[Outcome] | None:
        """The outcomes of all files; None while one is being written."""
        if self.reports.missing():
            return None
        saved = tables.saved()
        return None if saved is None else [*self.reports.outcomes(), *saved]

    def awaited(self, tables: Tables) -> str:
        """Which ranks have not written which files."""
        missing = [(k, self.folder / f"trainer-{k:04}.h5") for k in self.reports.missing()]
        if missing:
            return ", ".join(f"trainer {trainer} has not written {path}" for trainer, path in missing)
        if not self.committing:
            return tables.awaited()
        return f"trainer 0 has not written {self.folder / 'manifest.json'}"


def commit_or_remove(folder: Path, outcomes: list[Outcome], state: dict[str, Any]) -> CheckpointManifest:
    """Commit a checkpoint if all its files were written, otherwise remove it."""
    try:
        manifest = CheckpointManifest(checked(outcomes), state)
        store.commit(folder, manifest)
    except (OSError, DataError):
        store.try_to_remove(folder)  # what there is of it may be what fills the disk; its manifest may be there
        raise
    return manifest


def make_anew(folder: Path) -> None:
    """An empty folder."""
    shutil.rmtree(folder, ignore_errors=True)
    disk.make_folders(folder)


def put_in_place(beside: Path, place: Path, manifest: CheckpointManifest) -> None:
    """Commit a folder under its temporary name and move it into place, replacing the old one."""
    store.commit(beside, manifest)
    move_into_place(beside, place)


def make_room(store: Store, needed: int, path: Path) -> None:
    """Before a save: remove older checkpoints, never the newest, until ``path`` has room; FullDiskError if it has none
    even then.
    """
    needed += SPARE
    while (free := disk.free(store.folder.parent)) < needed:
        there = store.committed()
        if len(there) < 2:
            raise FullDiskError(
                f"{path}: {needed:,} bytes needed, {free:,} free: make room there, or choose another run.folder, and"
                " start again"
            )
        log.warning(f"{there[0]} is removed to make room for {path}: {needed:,} bytes needed, {free:,} free")
        store.retire(len(there) - 1)
        if store.committed() == there:
            raise FullDiskError(f"{path}: {needed:,} bytes needed, {free:,} free, and {there[0]} cannot be removed")


def check_room(run: Path, rows_bytes: int, keep: int, *, overwrite: bool) -> None:
    """Before training: FullDiskError if the model, with ``rows_bytes`` for all rows, does not fit even after all older
    checkpoints are removed; a warning if some will have to be. With ``overwrite`` the folder's present contents count
    as free.
    """
    there = Store(run).committed()
    saved = [sum(path.stat().st_size for path in folder.iterdir()) for folder in there]
    gone = sum(path.stat().st_size for path in run.rglob("*") if path.is_file()) if overwrite else sum(saved[:-1])
    free = disk.free(next(path for path in (run, *run.absolute().parents) if path.is_dir()))
    needed = rows_bytes + SPARE
    if free + gone < needed:
        raise FullDiskError(
            f"{run / MODEL}: {needed:,} bytes needed when training is done, {free + gone:,} free: make room there, or"
            " choose another run.folder"
        )
    if (has := free + (gone if overwrite else sum(saved))) < (keep + 1) * needed:
        log.warning(
            f"{run}: {has:,} bytes free, {(keep + 1) * needed:,} needed for checkpoint.keep = {keep} and one that is"
            " being written: older ones will be removed earlier, and saves may fail"
        )
