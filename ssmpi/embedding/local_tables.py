"""All tables in the trainer's own process, where there is no embedding PS."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ssmpi.core.protocols import RowLookup, RowSet
from ssmpi.core.traffic import Traffic
from ssmpi.embedding.table import Arena, Saver


class LocalTables:
    """All tables in this process: ``topology.embedding_ps = 0``, and scoring with a finished model.

    ``saver`` writes them; where nothing is saved there need not be one. ``traffic`` counts the rows.
    """

    def __init__(self, arena: Arena, saver: Saver | None = None, traffic: Traffic | None = None) -> None:
        self.arena, self._saver, self._traffic = arena, saver, traffic or Traffic()
        self._path = Path()

    @property
    def near(self) -> list[np.ndarray]:
        """All rows."""
        return [self.arena.weights, self.arena.state]

    def ask(self, lookup: RowLookup, thread: int) -> None:
        """They were fetched as they were found, so that a prefetched row is as old as one that a message brought."""
        self._traffic.add_rows(lookup.found)

    def collect(self, lookup: RowLookup) -> None:
        """Nothing to wait for."""

    def push(self, lookup: RowLookup, gradients: np.ndarray, factor: float, thread: int) -> None:
        """Apply at once."""
        settings = self.arena.options.settings
        lookup.push(gradients, settings.rate * factor, settings.epsilon)
        self._traffic.add_rows(lookup.found)

    def update(self, lookup: RowSet, gradients: np.ndarray, factor: float, thread: int) -> None:
        """Apply at once."""
        self.arena.update(lookup.rows[: len(gradients)], gradients, factor)
        self._traffic.add_rows(len(gradients))

    def drain(self) -> None:
        """Every update has been applied."""

    def begin_save(self, folder: Path, limit_seconds: float, *, background: bool) -> None:
        """Start writing the tables into ``folder``; they may change again when this returns."""
        assert self._saver
        self._path = folder / "embedding-0000.h5"
        self._saver.begin(self.arena, self._path, limit_seconds, background=background)

    def saved(self) -> list[dict[str, Any]] | None:
        """What became of it; None while it is being written."""
        assert self._saver
        outcome = self._saver.outcome()
        return None if outcome is None else [outcome]

    def awaited(self) -> str:
        """Who has not written what."""
        return f"trainer 0 has not written {self._path}"

    def exchange_news(self, samples: int, saves_rows: bool = True) -> list[dict[str, Any]]:
        """Nobody to tell."""
        return []

    def goodbye(self) -> None:
        """Nobody to take leave of."""
