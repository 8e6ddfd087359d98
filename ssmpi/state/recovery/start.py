"""What a start of a job is told, how it is to start, and the state that a rank starts from. The launcher imports it: no
MPI, no HDF5.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ssmpi.runtime.mpi.rank_memory import ProcessMemory, RankMemory

if TYPE_CHECKING:
    from ssmpi.config import Config
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
