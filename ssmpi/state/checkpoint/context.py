"""What a trainer gives the checkpoint manager when it creates it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from pathlib import Path

    from ssmpi.runtime.mpi.rank_memory import RankMemory
    from ssmpi.runtime.mpi.waiting import WaitOptions
    from ssmpi.runtime.mpi.world import World
    from ssmpi.runtime.run_options import CheckpointOptions
    from ssmpi.runtime.stop import Stop
    from ssmpi.state.checkpoint.pending_save import SavableTables


@dataclass(frozen=True, kw_only=True)
class SaveContext:
    """Where, with which ranks and by which settings a trainer saves. ``stop`` says whether the run is to end;
    ``memory`` holds the time of the last checkpoint, which survives a kill.
    """

    run: Path
    options: CheckpointOptions
    waiting: WaitOptions
    world: World
    tables: SavableTables
    stop: Stop
    memory: RankMemory


class SaveLog(Protocol):
    """The metric logger, as far as saving needs it; the first trainer has one."""

    def saved(self, line: dict[str, Any]) -> None:
        """Write what saving a checkpoint cost, or that it failed."""

    def pause(self, seconds: float) -> None:
        """Training stood still for this long."""

    def say(self, text: str) -> None:
        """Print a line."""
