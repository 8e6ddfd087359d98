"""Embedding PSs in the thread of their only trainer, which reaches them by messages as it would on other hosts."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from ssmpi.embedding.placement import Placement
from ssmpi.embedding.server import EmbeddingServer
from ssmpi.embedding.table import Arena, RowOptions
from ssmpi.embedding.trackers import NOTHING, Tracking
from ssmpi.embedding.transport import RemoteTables
from ssmpi.runtime.mpi.in_process import AnsweringJob, InProcessChannel, InProcessConversation
from ssmpi.runtime.mpi.service import Service
from ssmpi.runtime.mpi.waiting import WaitOptions
from ssmpi.runtime.topology import Role, Topology
from ssmpi.runtime.traffic import Traffic, meter

if TYPE_CHECKING:
    from ssmpi.runtime.mpi.messages import Conversation

NAME = "embedding"  # of the conversation
WAITING = WaitOptions()


class LocalServers:
    """All embedding PSs, and ``tables``, through which the trainer reaches them; ``options`` have
    ``shared_memory = False``. They answer whenever it sends something or waits. ``tracking`` says what pushes tell
    them about accesses.
    """

    def __init__(self, options: RowOptions, placement: Placement, seed: int, tracking: Tracking = NOTHING) -> None:
        servers = range(placement.servers)
        self.arenas = [Arena(options, placement, server, seed) for server in servers]
        self._job = AnsweringJob(self._answer)
        self._channel = InProcessChannel(self._job, Topology(embedding_ps=placement.servers).directory(NAME))
        self._ranks = self._channel.directory.ranks_of(Role.EMBEDDING_PS)
        self._services = [Service(self._end(rank)) for rank in self._ranks]
        counts, pairs = b"" if tracking.counts else None, zip(self.arenas, self._services, strict=True)
        self._servers = [EmbeddingServer(arena, service, counts=counts) for arena, service in pairs]
        (trainer,) = self._channel.directory.ranks_of(Role.TRAINER)
        self.tables = RemoteTables(self._end(trainer), placement, options, WAITING, tracking=tracking)

    def catch_up(self) -> None:
        """Let them apply all pushes."""
        self._job.check()

    def _answer(self) -> None:
        for rank, service, server in zip(self._ranks, self._services, self._servers, strict=True):
            if self._channel.sent[rank]:
                service.answer_pending(server.handle)

    def _end(self, rank: int) -> Conversation:
        return cast("Conversation", InProcessConversation(self._channel, rank, meter(Traffic(), NAME)))
