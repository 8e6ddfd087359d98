"""Counts push messages at both ends, in memory that outlives a kill: pushes sent but never applied were lost in flight.
In-place updates are not messages and cannot be lost.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

import numpy as np

from ssmpi.runtime.mpi.rank_memory import ProcessMemory
from ssmpi.runtime.mpi.service import THREADS

if TYPE_CHECKING:
    from ssmpi.runtime.mpi.rank_memory import ArrayMemory

LOST, REPORTED, SET_OFF, WHOSE = range(-4, 0)  # rows below those of the threads
COUNT = 16  # bytes of ``AppliedPushes.answer``


class SentPushes:
    """Pushes of one trainer to each PS, counted by each thread separately. ``name`` is that of the array in
    ``memory``.
    """

    def __init__(
        self, memory: ArrayMemory | None = None, threads: int = THREADS, servers: int = 1,
        name: str = "pushes sent",
    ) -> None:  # fmt: skip
        self._counts = (memory or ProcessMemory()).array(name, (threads + 4, servers), np.int64)
        self.by_thread = self._counts[:threads]

    def to(self, server: int) -> int:
        """How many pushes the server must have applied for none to be in flight."""
        return int(self.by_thread[:, server].sum() - self._counts[SET_OFF, server] - self._counts[LOST, server])

    def compare(self, server: int, whose: int, applied: int) -> None:
        """While no pushes are in flight: PS ``server`` has ``applied`` this many according to its count ``whose``; the
        rest was lost. Counts cannot be compared if one of them restarted because memory was lost. Idempotent.
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
        """How many were lost and are not reported yet."""
        return max(0, int((self._counts[LOST] - self._counts[REPORTED]).sum()))

    def reported(self) -> None:
        """Mark the losses so far as reported."""
        self._counts[REPORTED] = self._counts[LOST]


class AppliedPushes:
    """Pushes applied on one PS, by client of its conversation. ``whose`` identifies this count; one with another id
    started at 0.
    """

    def __init__(self, memory: ArrayMemory | None = None, clients: int = THREADS) -> None:
        counts = (memory or ProcessMemory()).array("pushes applied", (1 + clients,), np.int64)
        self._whose, self.by_client = counts[:1], counts[1:]
        if not self._whose[0]:
            self._whose[0] = 1 + secrets.randbits(62)

    def answer(self, client: int, out: np.ndarray) -> None:
        """Write what ``SentPushes.compare`` needs, as int64, into ``out`` uint8 (COUNT,)."""
        out.view(np.int64)[:] = self._whose[0], self.by_client[client]
