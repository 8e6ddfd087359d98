"""The state that a rank starts from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ssmpi.comm.rank_memory import ProcessMemory, RankMemory

if TYPE_CHECKING:
    from ssmpi.checkpoint.rows.newest import Reloaded


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


@dataclass(frozen=True)
class Start:
    """Start from ``memory`` that survived, on all ranks except those that a ``repair`` names; else from ``checkpoint``;
    else from the beginning.
    """

    checkpoint: Path | None = None
    memory: RankMemory = field(default_factory=ProcessMemory)
    repair: Repair | None = None
    ledger: Mapping[str, Any] | None = None  # the noted ``recovery.ledger``
    timeline: int = 1  # row saves of another timeline are ignored

    @property
    def warm(self) -> bool:
        """Whether the run resumes from memory; the same on all ranks."""
        return self.memory.kept or self.repair is not None


BEGINNING = Start()
