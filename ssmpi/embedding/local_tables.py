"""All tables in the trainer's own process, for runs without embedding PSs."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ssmpi.embedding.table import Arena, Saver
from ssmpi.runtime.protocols import RowLookup, RowSet
from ssmpi.runtime.traffic import Traffic


class LocalTables:
    """All tables in this process: with ``topology.embedding_ps = 0``, and to score a finished model.

    ``saver`` writes them; it is needed only to save. ``traffic`` counts the rows.
    """

    def __init__(self, arena: Arena, saver: Saver | None = None, traffic: Traffic | None = None) -> None:
        self.arena, self._saver, self._traffic = arena, saver, traffic or Traffic()
        self._path, self._writing = Path(), threading.Lock()

    @property
    def mapped(self) -> list[np.ndarray]:
        """All rows."""
        return [self.arena.weights, self.arena.state]

    @property
    def maps(self) -> list[list[np.ndarray]]:
        """All maps."""
        return [self.arena.keyed.maps]

    def find(self, asked: Sequence[np.ndarray], thread: int) -> list[np.ndarray]:
        """One thread at a time, as a map has one writer."""
        with self._writing:
            return [self.arena.keyed.find(*asked)]

    def sweep(self, samples: int) -> list[np.ndarray]:
        """As ``RemoteTables``."""
        return [self.arena.keyed.sweep(samples)]

    def ask(self, lookup: RowLookup, thread: int) -> None:
        """The lookup fetched the rows when it found them, so a prefetched row is as old as with a PS."""

    def collect(self, lookup: RowLookup) -> None:
        """Nothing to wait for."""

    def push(self, lookup: RowLookup, gradients: np.ndarray, factor: float, thread: int) -> None:
        """Apply at once."""
        lookup.push(gradients, self.arena.options.optimizer.numbers, factor)
        self._traffic.add_rows(2 * lookup.unique_count)  # read by the lookup, and updated

    def update(self, lookup: RowSet, gradients: np.ndarray, factor: float, thread: int) -> None:
        """Apply at once."""
        self.arena.update(lookup.rows[: len(gradients)], gradients, factor)
        self._traffic.add_rows(len(gradients))

    def drain(self) -> None:
        """Every update has been applied."""

    def begin_save(self, folder: Path, limit_seconds: float, *, background: bool) -> None:
        """Start writing the tables into ``folder``; the rows may change once this returns."""
        assert self._saver
        self._path = folder / "embedding-0000.h5"
        self._saver.begin(self.arena, self._path, limit_seconds, background=background)

    def saved(self) -> list[dict[str, Any]] | None:
        """The outcome; None while the tables are being written."""
        assert self._saver
        outcome = self._saver.outcome()
        return None if outcome is None else [outcome]

    def awaited(self) -> str:
        """For messages: who has not written which file."""
        return f"trainer 0 has not written {self._path}"

    def exchange_status(self, samples: int) -> list[dict[str, Any]]:
        """There are no PSs."""
        return []

    def goodbye(self) -> None:
        """There are no PSs."""
