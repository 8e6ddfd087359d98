"""Where a rank starts from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from ssmpi.comm.rank_memory import ProcessMemory, RankMemory


class Unsaved(NamedTuple):
    """Accesses of rows since each row's own save: ``left`` when some were saved last, NaN where nobody counted, after
    so many ``samples`` of all trainers; each later sample has ``per_sample`` more.
    """

    left: float
    samples: int
    per_sample: float

    def lost(self, covered: int, now: int) -> float:
        """CPR's updates lost, by a loss of the rows after ``now`` samples, of which nothing up to ``covered`` may be
        counted: the rows were loaded anew then, if that is later than their newest save.
        """
        left = 0.0 if covered > self.samples else self.left
        return left + (now - max(covered, self.samples)) * self.per_sample


class Loaded(NamedTuple):
    """Rows of an embedding PS that were loaded anew, from where, and how long that took. ``samples`` of all trainers
    had been trained on when the newest state that covers all of them was taken; some may be newer.
    """

    samples: int
    rows: int
    source: str
    seconds: float
    unsaved: Unsaved


@dataclass(frozen=True, kw_only=True)
class Repair:
    """What a partial recovery has to make good, now that the memory of some ranks is new: by rank, the start that has
    made it. Those are the ``trainers`` and ``sync_ps`` by index, and the embedding PSs whose rows were ``loaded`` into
    it. ``checkpoint`` is the newest one, if there is one.
    """

    ranks: Mapping[int, int]
    trainers: frozenset[int] = frozenset()
    sync_ps: frozenset[int] = frozenset()
    loaded: Mapping[int, Loaded] = field(default_factory=dict)
    checkpoint: Path | None = None


@dataclass(frozen=True)
class Start:
    """From what ``memory`` has kept, on all ranks alike but for those that a ``repair`` names; else from
    ``checkpoint``; else from the beginning.
    """

    checkpoint: Path | None = None
    memory: RankMemory = field(default_factory=ProcessMemory)
    repair: Repair | None = None
    ledger: Mapping[str, Any] | None = None  # what ``recovery.ledger`` has noted of all memory
    timeline: int = 1  # rows that were saved beside training in another one do not count

    @property
    def warm(self) -> bool:
        """Whether the run goes on from memory, on all ranks alike."""
        return self.memory.kept or self.repair is not None


BEGINNING = Start()
