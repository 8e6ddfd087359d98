"""What a start of a job is told, how it is to start, the memory that earlier starts have left on the hosts (inspected,
created anew, removed, or refused), and the state that a rank starts from. The launcher imports it: no MPI, no HDF5.
"""

from __future__ import annotations

import itertools
import math
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from ssmpi.runtime.errors import SettingsError
from ssmpi.runtime.files.log import log
from ssmpi.runtime.host import memory_folder
from ssmpi.runtime.mpi.rank_memory import LostMemoryError, MemoryFile, Origin, ProcessMemory, RankMemory

if TYPE_CHECKING:
    from ssmpi.config import Config
    from ssmpi.runtime.mpi.world import Job
    from ssmpi.state.checkpoint.parent import Parent
    from ssmpi.state.checkpoint.rows.newest import Reloaded
    from ssmpi.state.recovery.ledger import Ledger


class Supervised(NamedTuple):
    """The number of this start of the job, and its launch; ``ended`` is when the previous start ended, in seconds since
    1970. ``first`` is the first start of the ``ssmpi launch`` that runs now: 1, or more if it continues a launch that
    ended before the run was saved.
    """

    launch: str
    start: int
    ended: float
    first: int = 1

    @classmethod
    def parse(cls, text: str) -> Supervised:
        """The inverse of ``word``."""
        launch, start, ended, first = text.split(":")
        return cls(launch, int(start), float(ended), int(first))

    @property
    def word(self) -> str:
        """The value as an argument of ``ssmpi train``."""
        return f"{self.launch}:{self.start}:{self.ended:.3f}:{self.first}"


@dataclass(frozen=True)
class ResumePlan:
    """How a job starts: its settings, the checkpoints to try (newest first), or that it is finished; ``resumed`` if the
    folder holds the run already, ``again`` if its launch restarts it after a kill. ``parent`` is the finished run that
    it continues, where there is no checkpoint yet. ``previous`` is the launch that the run belonged to, or the run that
    was overwritten here; its memory is removed unless it is ``ahead`` of the checkpoints, where it has survived: then
    the job resumes from it.
    """

    config: Config
    checkpoints: tuple[Path, ...] = ()
    finished: bool = False
    resumed: bool = False
    again: bool = False
    previous: str = ""
    ahead: bool = False
    parent: Parent | None = None


class MemoryPlace(NamedTuple):
    """Where the memory of a rank is: that of ``who``, in a ``launch``."""

    path: Path
    launch: str
    who: str

    @classmethod
    def of(cls, config: Config, rank: int, launch: str) -> MemoryPlace:
        """The place of a rank's memory in a launch."""
        role, index = config.topology.role_of(rank)
        folder = memory_folder.of_launch(config.recovery.memory_folder, launch)
        return cls(folder / f"{role}-{index}", launch, config.topology.name_of(rank))

    def inspect(self) -> tuple[MemoryFile | None, str]:
        """The memory that an earlier process of the rank left, or why it cannot be used."""
        try:
            return MemoryFile.found(*self), ""
        except LostMemoryError as error:
            return None, str(error)

    def fresh(self, run: Path, start: int) -> RankMemory:
        """New memory, created by this ``start``, that the next one can resume from; if that is not possible, with a
        warning, memory that ends with the process.
        """
        memory: RankMemory
        try:
            memory = MemoryFile(self.path, Origin(self.launch, self.who, start))
        except OSError as error:
            log.warning(
                f"no memory for {self.who} in {self.path.parent.parent} ({error}): training continues, but if a rank is"
                " killed this one loses what it has learned since the newest save. Set recovery.memory_folder to a"
                " memory file system, or recovery.mode = 'off'"
            )
            memory = ProcessMemory()
        memory.note(run=str(run.resolve()))  # for who finds it
        return memory


def refuse_left(run: Path, why: str) -> NoReturn:
    """Raise SettingsError: what the last launch left in memory must not be lost without being asked for."""
    raise SettingsError(
        f"{run}: the last launch ended before the run was saved. Its memory has survived, but {why} cannot resume from"
        f" it. 'ssmpi launch --resume {run}' resumes from it; add '--checkpoint whole' to resume from the newest"
        " checkpoint, without what was learned since"
    )


def remove_everywhere(job: Job, config: Config, launch: str) -> None:
    """Remove what an earlier launch, if there was one, has left on the hosts of this job, and say where that fails.
    Every rank calls it.
    """
    folders = [config.recovery.memory_folder, *filter(None, [config.embedding.storage])] if launch else []
    found = job.gather([remove_left(folder, launch) for folder in folders])
    for problem in dict.fromkeys(filter(None, itertools.chain(*found))) if job.rank == 0 else ():
        log.warning(problem)


def remove_left(memory: str, launch: str) -> str:
    """Remove the memory that an earlier, killed launch of the run left on this host; returns why it cannot be removed.
    Other ranks of the host try it too. Memory that a process still maps stays: it belongs to a running job of which
    this run folder is a copy.
    """
    folder = memory_folder.of_launch(memory, launch)
    ours = folder in memory_folder.all_in(Path(memory))  # a damaged name may lead anywhere
    if not ours or memory_folder.in_use(folder):
        return ""
    try:
        memory_folder.remove(folder)
    except OSError as error:
        return f"{folder} on {socket.gethostname()}, left by a launch that was killed, cannot be removed: {error}"
    return ""


@dataclass(frozen=True, kw_only=True)
class Repair:
    """What a partial recovery has to restore. ``ranks`` maps each rank with new memory to the start that created it:
    ``trainers`` and ``sync_ps`` by index, and the embedding PSs whose rows were ``loaded``. ``checkpoint`` is the
    newest one, if there is one.
    """

    ranks: Mapping[int, int]
    trainers: frozenset[int] = frozenset()
    sync_ps: frozenset[int] = frozenset()
    loaded: Mapping[int, Reloaded] = field(default_factory=dict)
    checkpoint: Path | None = None

    @property
    def taken(self) -> dict[int, int]:
        """``Reloaded.samples`` by embedding PS, as the ledger books them."""
        return {index: loaded.samples for index, loaded in self.loaded.items()}

    def updates_lost(self, before: Ledger, now: int) -> int | None:
        """Accesses of the lost rows since these were saved, if they are lost after ``now`` samples; None if they were
        not counted.
        """
        lost = sum(loaded.unsaved.lost(before.accounts[index].covered, now) for index, loaded in self.loaded.items())
        return None if math.isnan(lost) else round(lost)


@dataclass(frozen=True)
class Start:
    """Start from ``memory`` that survived, on all ranks except those that a ``repair`` names; else from ``checkpoint``;
    else from the beginning, with the model in ``parent`` if the run continues another one.
    """

    checkpoint: Path | None = None
    memory: RankMemory = field(default_factory=ProcessMemory)
    repair: Repair | None = None
    ledger: Ledger | None = None
    timeline: int = 1  # row saves of another timeline are ignored
    parent: Path | None = None

    @property
    def warm(self) -> bool:
        """Whether the run resumes from memory; the same on all ranks."""
        return self.memory.kept or self.repair is not None


BEGINNING = Start()
