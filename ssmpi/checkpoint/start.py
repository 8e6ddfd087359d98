"""Where a rank starts from."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from ssmpi.comm.rank_memory import ProcessMemory, RankMemory


@dataclass(frozen=True)
class Start:
    """From what ``memory`` has kept, on all ranks alike; else from ``checkpoint``; else from the beginning."""

    checkpoint: Path | None = None
    memory: RankMemory = field(default_factory=ProcessMemory)
    timeline: int = 1  # rows that were saved beside training in another one do not count


BEGINNING = Start()
