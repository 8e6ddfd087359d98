"""The memory that earlier starts of a run have left on the hosts: inspected, created anew, removed, or refused."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from ssmpi.runtime.errors import SettingsError
from ssmpi.runtime.files.log import log
from ssmpi.runtime.host import memory_folder
from ssmpi.runtime.mpi.rank_memory import LostMemoryError, MemoryFile, Origin, ProcessMemory, RankMemory

if TYPE_CHECKING:
    from ssmpi.config import Config
    from ssmpi.runtime.mpi.world import Job


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
        f"{run}: the last launch ended before the run was saved, and its memory has survived, from which {why} cannot"
        f" resume. 'ssmpi launch --resume {run}' resumes from it; add '--checkpoint whole' to resume from the newest"
        " checkpoint, without what was learned since"
    )


def remove_everywhere(job: Job, config: Config, launch: str) -> None:
    """Remove what an earlier launch, if there was one, has left on the hosts of this job, and say where that fails.
    Every rank calls it.
    """
    found = job.gather(remove_left(config.recovery.memory_folder, launch) if launch else "")
    for problem in dict.fromkeys(filter(None, found)) if job.rank == 0 else ():
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
