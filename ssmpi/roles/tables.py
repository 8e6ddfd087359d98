"""All tables as a trainer sees them, wherever the rows are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ssmpi.checkpoint import parent
from ssmpi.checkpoint.arena_writer import ArenaWriter
from ssmpi.checkpoint.model_files import load_tables
from ssmpi.comm.push_counts import SentPushes
from ssmpi.comm.world import World
from ssmpi.core.protocols import RowTransport
from ssmpi.embedding.client import Lookups, MakeLookups, PrefetchedRows
from ssmpi.embedding.local_tables import LocalTables
from ssmpi.embedding.placement import Placement
from ssmpi.embedding.table import ROWS, Arena
from ssmpi.embedding.transport import RemoteTables
from ssmpi.recovery.start import Start

if TYPE_CHECKING:
    from ssmpi.config import Config


def placing(cardinalities: Sequence[int], servers: int, start: Start) -> str:
    """What creating ``Tables`` does, for the log."""
    rows, where = (
        f"{sum(cardinalities):,} embedding rows",
        f"on {servers} embedding PS{'s' * (servers > 1)}" if servers else "in the trainer",
    )
    if start.warm:
        return f"mapping {rows} {where}"
    if start.parent:
        return f"placing {rows} {where}, loading those of {start.parent}"
    return f"loading {rows} of {start.checkpoint.name} {where}" if start.checkpoint else f"placing {rows} {where}"


def load_rows(config: Config, arena: Arena, start: Start, server: int = 0) -> None:
    """Fill the new arena of PS ``server`` with the rows that the job starts from; at a beginning it has its own."""
    if start.checkpoint:
        load_tables(arena, start.checkpoint, server)
    elif start.parent:
        parent.load_rows(arena, start.parent, server, fresh=config.run.fresh_optimizer)


class Tables:
    """Reaches the embedding PSs of the topology, or holds the rows itself if there are none. ``sent`` counts push
    messages.
    """

    def __init__(self, config: Config, world: World, placement: Placement, start: Start) -> None:
        servers = config.topology.embedding_ps
        self._options, self.placement = config.rows, placement
        self.transport: LocalTables | RemoteTables
        self.sent = SentPushes(start.memory, config.topology.threads, servers)
        if servers:
            self.transport = RemoteTables(
                world.embedding, self.placement, config.rows, config.waiting, self.sent, config.tracking
            )
            self.transport.compare_pushes()
            return
        arena = Arena(config.rows, self.placement, 0, config.run.seed, start.memory.part(ROWS, shared=False))
        load_rows(config, arena, start)
        self.transport = LocalTables(arena, ArenaWriter(world.same_role_here), world.traffic)

    def lookups(
        self, thread: int, prefetched: PrefetchedRows | None = None, through: RowTransport | None = None,
        kind: MakeLookups = Lookups,
    ) -> Lookups:  # fmt: skip
        """Pull and push for one thread, ``through`` a transport other than the default if given; ``prefetched`` keeps
        the rows pulled so far when its stream is interrupted.
        """
        return kind(through or self.transport, self.placement, self._options, thread, prefetched)
