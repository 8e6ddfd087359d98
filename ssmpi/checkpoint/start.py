"""The state that a rank starts from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from ssmpi.comm.rank_memory import ProcessMemory, RankMemory


class Unsaved(NamedTuple):
    """Accesses of rows that are not saved: ``left`` at the last save, NaN if not counted, after ``samples`` of all
    trainers; each later sample adds ``per_sample``.
    """

    left: float
    samples: int
    per_sample: float

    def lost(self, covered: int, now: int) -> float:
        """CPR's lost updates if the rows are lost after ``now`` samples. Accesses up to ``covered`` do not count: the
        rows were reloaded then, if that is later than their newest save.
        """
        left = 0.0 if covered > self.samples else self.left
        return left + (now - max(covered, self.samples)) * self.per_sample


class Loaded(NamedTuple):
    """The reloaded rows of an embedding PS, their source, and how long that took. ``samples`` of all trainers had been
    trained on when the newest of what PLS counts as saves of all rows was taken.
    """

    samples: int
    rows: int
    source: str
    seconds: float
    unsaved: Unsaved


@dataclass(frozen=True, kw_only=True)
class Repair:
    """What a partial recovery has to restore. ``ranks`` maps each rank with new memory to the start that created it:
    ``trainers`` and ``sync_ps`` by index, and the embedding PSs whose rows were ``loaded``. ``checkpoint`` is the
    newest one, if there is one.
    """

    ranks: Mapping[int, int]
    trainers: frozenset[int] = frozenset()
    sync_ps: frozenset[int] = frozenset()
    loaded: Mapping[int, Loaded] = field(default_factory=dict)
    checkpoint: Path | None = None

    @property
    def taken(self) -> dict[int, int]:
        """``Loaded.samples`` by embedding PS, as the ledger books them."""
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
