"""Pushes by message, counted at both ends in memory that outlives a kill: those that were sent and never applied were
lost on their way. What is worked on in place is no message, and cannot be.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

import numpy as np

from ssmpi.comm.rank_memory import ProcessMemory
from ssmpi.embedding import wire

if TYPE_CHECKING:
    from ssmpi.comm.rank_memory import RankMemory

LOST, REPORTED, SET_OFF, WHOSE = range(-4, 0)  # rows below those of the threads


class SentPushes:
    """Of one trainer to each PS. No two threads count in one place. The array in the ``memory`` has a ``name``."""

    def __init__(
        self, memory: RankMemory | None = None, threads: int = wire.THREADS, servers: int = 1,
        name: str = "pushes sent",
    ) -> None:  # fmt: skip
        self._counts = (memory or ProcessMemory()).array(name, (threads + 4, servers), np.int64)
        self.by_thread = self._counts[:threads]

    def to(self, server: int) -> int:
        """How many must have been applied for none to be on its way."""
        return int(self.by_thread[:, server].sum() - self._counts[SET_OFF, server] - self._counts[LOST, server])

    def compare(self, server: int, whose: int, applied: int) -> None:
        """At rest: PS ``server`` has applied so many, as the count says that it has named ``whose``. The rest was lost.
        Between two counts of which one began anew, as memory was lost, nothing can be compared. May be repeated.
        """
        lost, set_off, known = (self._counts[row, server : server + 1] for row in (LOST, SET_OFF, WHOSE))
        sent = int(self.by_thread[:, server].sum())
        if known[0] == whose:
            lost[0] = sent - set_off[0] - applied
        else:
            set_off[0] = sent - lost[0] - applied
            known[0] = whose

    @property
    def lost(self) -> int:
        """How many were lost since ``reported``."""
        return max(0, int((self._counts[LOST] - self._counts[REPORTED]).sum()))

    def reported(self) -> None:
        """Those that were lost so far are on record."""
        self._counts[REPORTED] = self._counts[LOST]


class AppliedPushes:
    """On one PS, by the ``clients`` of its conversation. ``whose`` names this count: another one began at 0."""

    def __init__(self, memory: RankMemory | None = None, clients: int = wire.THREADS) -> None:
        counts = (memory or ProcessMemory()).array("pushes applied", (1 + clients,), np.int64)
        self._whose, self.by_client = counts[:1], counts[1:]
        if not self._whose[0]:
            self._whose[0] = 1 + secrets.randbits(62)

    def answer(self, client: int, out: np.ndarray) -> None:
        """What ``SentPushes.compare`` takes of this, as int64, into ``out`` uint8 (16,)."""
        out.view(np.int64)[:] = self._whose[0], self.by_client[client]
