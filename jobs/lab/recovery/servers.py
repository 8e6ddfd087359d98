"""The embedding PSs of an emulated job: their real saves, and the updates that a loss discards."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ssmpi.embedding import tracker_kernels
from ssmpi.embedding.precision import converted
from ssmpi.embedding.table import Arena
from ssmpi.embedding.trackers import SCAR, Scope, Tracker, Tracking
from ssmpi.state.checkpoint.rows.row_store import RowStore
from ssmpi.state.recovery.ledger import LossAccount


def tracker_of(kind: str, fraction: float, scope: Scope, arena: Arena) -> Tracker:
    """A new tracker of a ``fraction`` of the rows; ``kind`` is ``mfu``, ``ssu`` or ``scar``."""
    if kind == "scar":
        return SCAR(scope, fraction, arena.weights)
    tracking = Tracking(kind, fraction)
    return tracking.over(scope, np.zeros(tracking.bytes_for(scope), np.uint8))


@dataclass
class Tally:
    """The counters of one PS. ``written`` are bytes of saves and of compactions; ``coverage`` is the share that each
    priority save covered. ``updates_lost`` counts lost lookups of examples, ``large_lost`` those in the large tables,
    from which priority selects, ``batches_lost`` lost rows once per batch.
    """

    written: int
    coverage: list[float]
    updates_lost: int = 0
    large_lost: int = 0
    batches_lost: int = 0


class SavedServer:
    """The saves of one PS to the file ``path``: first the initial rows, then all rows, or those that a tracker selects.
    ``make_tracker`` creates a new tracker, of a ``fraction`` of the rows, after each loss, because the tracker's memory
    is lost too. ``scope`` is the large tables.
    """

    def __init__(
        self, arena: Arena, path: Path, scope: Scope, make_tracker: Callable[[], Tracker] | None, fraction: float = 1.0
    ) -> None:
        self._arena, self._scope, self._make_tracker, self._fraction = arena, scope, make_tracker, fraction
        self._store = RowStore(path, arena, timeline=0)
        self.base_bytes = self._store.save_all(0)
        self.account, self.tally = LossAccount(), Tally(0, [])
        self._unsaved = np.zeros((2, len(arena.weights)), np.uint32)  # per row since its last save: lookups, batches
        self._tracker = make_tracker() if make_tracker else None
        arena.set_observer(self._observe)

    def save(self, samples: int) -> None:
        """Write the save that is due; ``samples`` have been trained on."""
        if self._tracker is None:
            self.tally.written += self._store.save_all(samples)
            self.account = self.account.saved(samples)
            self._unsaved[:] = 0
            return
        selection = self._tracker.select()
        self.tally.written += self._store.save(selection.rows, samples, self._fraction)
        self.account = self.account.saved(self._store.covered)
        self.tally.coverage.append(selection.share)
        self._unsaved[:, selection.rows] = 0
        if self._store.increments_outweigh_base:
            self.tally.written += self._store.compact()

    def lose(self, samples: int) -> None:
        """Lose the memory after ``samples`` samples, and reload it from the saves."""
        lookups, batches = self._unsaved.sum(axis=1, dtype=np.int64).tolist()
        self.tally.updates_lost += lookups
        self.tally.large_lost += round(self._scope.sum(self._unsaved[0]))
        self.tally.batches_lost += batches
        self.account = self.account.reloaded(samples)
        self.reload()

    def reload(self) -> None:
        """Set every row to its newest saved values."""
        unknown = np.full(1, np.nan, np.float32)  # exposes rows that are not loaded
        self._arena.weights[:] = converted(unknown, self._arena.weights.dtype)
        self._arena.state[:] = unknown
        saved = self._store.load()
        assert saved is not None, "the initial rows were saved"
        self._store.restore(saved)
        self._unsaved[:] = 0
        self._tracker = self._make_tracker() if self._make_tracker else None

    def _observe(self, rows: np.ndarray, times: np.ndarray) -> None:
        tracker_kernels.count(self._unsaved[0], rows, times)
        tracker_kernels.count(self._unsaved[1], rows, np.ones_like(times))
        if self._tracker:
            self._tracker.observe(rows, times)
