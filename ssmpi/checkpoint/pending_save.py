"""A checkpoint that is being written: every trainer's file and every embedding PS's on threads of their own, so that a
disk that is slow or hangs holds up neither training nor a message.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
import os
import shutil
import threading
from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np

from ssmpi.checkpoint import files, store
from ssmpi.checkpoint.model_files import move_into_place
from ssmpi.checkpoint.store import FileManifest
from ssmpi.comm.failure import NO_ROOM, cause
from ssmpi.comm.waiting import WaitOptions, wait
from ssmpi.core.clock import Clock
from ssmpi.core.errors import DataError
from ssmpi.core.save_cost import SaveCost
from ssmpi.embedding import wire

if TYPE_CHECKING:
    from ssmpi.comm.messages import Conversation

SAVED = 1002  # tag of what became of a trainer's files; the control conversation has tags of its own
NICENESS = 10  # of a writing thread: on a full node it must not take a core from training
LONGEST_ERROR = 1200

T = TypeVar("T")
Outcome = dict[str, Any]  # of writing a file: an ``Entry``, or ``error`` and whether the disk is ``full``


class SavableTables(Protocol):
    """All embedding tables, wherever their rows are, as far as saving needs them."""

    def begin_save(self, folder: Path, limit_seconds: float, *, background: bool) -> None:
        """Start writing every PS's rows into ``folder``."""

    def saved(self) -> list[Outcome] | None:
        """What became of the files; None while one is being written."""

    def awaited(self) -> str:
        """Who has not written what."""


class FullDiskError(DataError):
    """There is no room for a file."""


def written(path: Path, datasets: Iterable[files.Dataset]) -> Outcome:
    """Write a file; what became of it."""
    try:
        return asdict(files.write(path, datasets))
    except Exception as error:  # the first trainer knows what to do about it
        full = isinstance(error, OSError) and error.errno in NO_ROOM
        return {"error": cause(error)[:LONGEST_ERROR], "full": full}


def written_in_background(path: Path, datasets: Iterable[files.Dataset]) -> Outcome:
    """As ``written``, on a thread that leaves the cores to training."""
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
    """How to say that something took too long."""
    return f"checkpoint.limit_seconds = {limit_seconds:g}: look at the disk of that rank"


def in_time(future: Future[T], limit_seconds: float, what: str) -> T:
    """The result of what the first trainer does at the disk; DataError if that takes longer than it may."""
    if not concurrent.futures.wait([future], limit_seconds).done:
        raise DataError(f"trainer 0 has not {what} after {past_limit(limit_seconds)}")
    return future.result()


def report_outcomes(control: Conversation, outcomes: list[Outcome], waiting: WaitOptions) -> None:
    """Tell the first trainer, itself too, what became of this trainer's files."""
    text = np.empty(wire.TEXT, np.uint8)
    wire.text(json.dumps(outcomes).encode(), text)
    wait(control.isend(text, 0, SAVED), waiting, "trainer 0 (to hear that a file is written)")


class TrainerOutcomes:
    """On the first trainer: what each trainer says of its files. To be made before a trainer is asked to write them."""

    def __init__(self, control: Conversation) -> None:
        self._names, self._texts = control.names, np.empty((control.size, wire.TEXT), np.uint8)
        self._requests = [control.irecv(text, k, SAVED) for k, text in enumerate(self._texts)]

    def missing(self) -> list[int]:
        """The trainers that have not said so yet."""
        return [k for k, request in enumerate(self._requests) if not request.Test()]

    def outcomes(self) -> list[Outcome]:
        """Of the files of all."""
        each = zip(self._names, map(wire.read_text, self._texts), strict=True)
        return [{"who": who, **outcome} for who, text in each for outcome in json.loads(text)]


@dataclass
class PendingCheckpoint:
    """On the first trainer: a checkpoint that is not committed yet. ``step`` is what the time limit counts from: its
    files are being written, then it is committed.
    """

    folder: Path
    told: TrainerOutcomes
    state: dict[str, Any]
    clock: Clock
    step: Clock = field(default_factory=Clock)
    cost: SaveCost = field(default_factory=SaveCost)
    asked: float = 0.0
    late: bool = False
    committing: Future[FileManifest] | None = None

    def written(self, slowdown: float) -> None:
        """Its files are there, and training has lost so many seconds to slower steps meanwhile: a job that resumes from
        it knows of it.
        """
        self.step, self.cost = Clock(), SaveCost(self.cost.standstill or self.clock.wall, slowdown)
        logbook = self.state["logbook"]
        logbook |= {**SaveCost.of(logbook).plus(self.cost).fields(), "checkpoints": logbook["checkpoints"] + 1}

    def line(self, manifest: FileManifest) -> dict[str, Any]:
        """What ``metrics.jsonl`` says of it, once it is committed."""
        size, position = manifest.bytes, manifest.state["examples"]
        written = {"write_seconds": self.clock.wall, "bytes": size, "position": position}
        return {"name": self.folder.name, **self.cost.fields(), **written}

    def outcomes(self, tables: SavableTables) -> list[Outcome] | None:
        """Of all files; None while one is being written."""
        if self.told.missing():
            return None
        saved = tables.saved()
        return None if saved is None else [*self.told.outcomes(), *saved]

    def awaited(self, tables: SavableTables) -> str:
        """Who has not written what."""
        for trainer in self.told.missing():
            return f"trainer {trainer} has not written {self.folder / f'trainer-{trainer:04}.h5'}"
        if not self.committing:
            return tables.awaited()
        return f"trainer 0 has not written {self.folder / 'manifest.json'}"


def commit_or_remove(folder: Path, outcomes: list[Outcome], state: dict[str, Any]) -> FileManifest:
    """Commit a checkpoint whose files could all be written, remove another."""
    try:
        manifest = FileManifest(checked(outcomes), state)
        store.commit(folder, manifest)
    except (OSError, DataError):
        with contextlib.suppress(OSError):
            shutil.rmtree(folder)  # what there is of it may be what fills the disk
        raise
    return manifest


def make_anew(folder: Path) -> None:
    """An empty folder."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)


def put_in_place(beside: Path, place: Path, manifest: FileManifest) -> None:
    """Commit what lies beside its place and put it there; what was there goes."""
    store.commit(beside, manifest)
    move_into_place(beside, place)
