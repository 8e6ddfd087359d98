"""All tables as a trainer sees them, wherever the rows lie."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ssmpi.embedding.client import Lookups, MakeLookups, PrefetchedRows
from ssmpi.embedding.key_lookup import KeyLookup
from ssmpi.embedding.keyed_table import KeyCounts
from ssmpi.embedding.local_tables import LocalTables
from ssmpi.embedding.table import KEYS, ROWS, Arena
from ssmpi.embedding.transport import RemoteTables
from ssmpi.runtime.mpi.push_counts import SentPushes
from ssmpi.runtime.mpi.world import World
from ssmpi.runtime.protocols import RowTransport
from ssmpi.runtime.words import counted
from ssmpi.state.checkpoint import parent
from ssmpi.state.checkpoint.arena_writer import ArenaWriter
from ssmpi.state.checkpoint.model_files import load_tables
from ssmpi.state.recovery.start import Start

if TYPE_CHECKING:
    from ssmpi.config import Config, HasTables


def placing(cardinalities: Sequence[int], servers: int, start: Start) -> str:
    """What creating ``Tables`` does, for the log."""
    rows, where = (
        f"{sum(cardinalities):,} embedding rows",
        f"on {counted(servers, 'embedding PS')}" if servers else "in the trainer",
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

    def __init__(self, config: Config, world: World, data: HasTables, start: Start) -> None:
        servers = config.topology.embedding_ps
        self._options, self.placement = config.rows, config.placement(data)
        self.transport: LocalTables | RemoteTables
        self.sent = SentPushes(start.memory, config.topology.threads, servers)
        if servers:
            self.transport = RemoteTables(
                world.embedding, self.placement, config.rows, config.waiting, self.sent, config.tracking
            )
            self.transport.compare_pushes()
            return
        keys = start.memory.part(KEYS, shared=False) if self.placement.keyed else None
        rows = start.memory.part(ROWS, shared=False)
        arena = Arena(config.rows, self.placement, 0, config.run.seed, rows, keys)
        load_rows(config, arena, start)
        self.transport = LocalTables(arena, ArenaWriter(world.same_role_here), world.traffic)

    def lookups(
        self, thread: int, prefetched: PrefetchedRows | None = None, through: RowTransport | None = None,
        kind: MakeLookups = Lookups,
    ) -> Lookups:  # fmt: skip
        """Pull and push for one thread, ``through`` a transport other than the default if given; ``prefetched`` keeps
        the rows pulled so far when its stream is interrupted. Without it nothing is trained, so keys get no rows.
        """
        keys, features, keyed = None, len(self.placement.cardinalities), self.placement.keyed
        if keyed:
            keys = KeyLookup(self.transport, features, keyed, thread, counts=prefetched is not None)
        return kind(through or self.transport, self.placement, self._options, thread, prefetched, keys)

    def sweep(self, samples: int) -> list[KeyCounts]:
        """While all trainers rest: let keyed tables free rows, after so many ``samples`` of all; what each holds."""
        if not self.placement.keyed:
            return []
        return [KeyCounts(*counts) for counts in np.sum(self.transport.sweep(samples), axis=0).tolist()]
