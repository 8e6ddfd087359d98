"""The embedding PSs of an emulated job: real servers that answer one trainer in its own thread, their real saves, and
the updates that a loss discards.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np

from ssmpi.checkpoint.rows.store import RowStore
from ssmpi.comm.in_process import AnsweringJob, Channel, InProcessConversation
from ssmpi.comm.service import Service
from ssmpi.comm.waiting import WaitOptions
from ssmpi.core.topology import Role, Topology
from ssmpi.core.traffic import Traffic, meter
from ssmpi.embedding import tracker_kernels
from ssmpi.embedding.placement import Placement
from ssmpi.embedding.server import EmbeddingServer
from ssmpi.embedding.table import Arena, RowOptions
from ssmpi.embedding.trackers import SCAR, Scope, Tracker, Tracking
from ssmpi.embedding.transport import RemoteTables
from ssmpi.recovery.ledger import LossAccount

if TYPE_CHECKING:
    from ssmpi.comm.messages import Conversation

NAME = "embedding"  # of the conversation
WAITING = WaitOptions()
COUNTED = Tracking("mfu")  # pushes say how many accesses each row has, whatever is made of that


class LocalServers:
    """All embedding PSs, and ``tables``, through which the trainer reaches them by messages. They answer whenever it
    sends something or waits.
    """

    def __init__(self, options: RowOptions, placement: Placement, seed: int) -> None:
        servers = range(placement.servers)
        self.arenas = [Arena(options, placement, server, seed) for server in servers]
        self._job = AnsweringJob(self._answer)
        self._channel = Channel(self._job, Topology(embedding_ps=placement.servers).directory(NAME))
        self._ranks = self._channel.directory.ranks_of(Role.EMBEDDING_PS)
        self._services = [Service(self._end(rank), WAITING) for rank in self._ranks]
        pairs = zip(self.arenas, self._services, strict=True)
        self._servers = [EmbeddingServer(arena, service, counts=b"") for arena, service in pairs]
        (trainer,) = self._channel.directory.ranks_of(Role.TRAINER)
        self.tables = RemoteTables(self._end(trainer), placement, options, WAITING, tracking=COUNTED)

    def catch_up(self) -> None:
        """Let them apply all pushes."""
        self._job.check()

    def _answer(self) -> None:
        for rank, service, server in zip(self._ranks, self._services, self._servers, strict=True):
            if self._channel.sent[rank]:
                service.answer_pending(server.handle)

    def _end(self, rank: int) -> Conversation:
        return cast("Conversation", InProcessConversation(self._channel, rank, meter(Traffic(), NAME)))


def tracker_of(kind: str, fraction: float, scope: Scope, arena: Arena) -> Tracker:
    """A new tracker of a ``fraction`` of the rows; ``kind`` is ``mfu``, ``ssu`` or ``scar``."""
    if kind == "scar":
        return SCAR(scope, fraction, arena.weights)
    tracking = Tracking(kind, fraction, period=2)
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
        self._arena.weights[:] = np.nan  # exposes rows that are not loaded
        self._arena.state[:] = np.nan
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
