"""All tables as a trainer sees them, wherever the rows are."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ssmpi.checkpoint.arena_writer import ArenaWriter
from ssmpi.checkpoint.model_files import load_tables
from ssmpi.comm.world import World
from ssmpi.core.protocols import RowTransport
from ssmpi.embedding.client import HeldRows, Lookups
from ssmpi.embedding.placement import place
from ssmpi.embedding.table import Arena
from ssmpi.embedding.transport import LocalTables, RemoteTables

if TYPE_CHECKING:
    from ssmpi.config import Config


def placing(cardinalities: Sequence[int], servers: int, weights: Path | None) -> str:
    """What making ``Tables`` is about, in words."""
    rows, where = (
        f"{sum(cardinalities):,} embedding rows",
        f"on {servers} embedding PS{'s' * (servers > 1)}" if servers else "in the trainer",
    )
    return f"loading {rows} of {weights.name} {where}" if weights else f"placing {rows} {where}"


class Tables:
    """Reaches the embedding PSs of the topology, or holds the rows itself where there are none.

    ``weights`` is the saved model to start from, None for fresh rows.
    """

    def __init__(self, config: Config, world: World, cardinalities: tuple[int, ...], weights: Path | None) -> None:
        servers = config.topology.embedding_ps
        self._options, self.placement = config.embedding, place(cardinalities, max(1, servers))
        self.transport: LocalTables | RemoteTables
        if servers:
            self.transport = RemoteTables(world.embedding, self.placement, config.embedding, config.waiting)
            return
        arena = Arena(config.embedding, self.placement, 0, config.run.seed)
        if weights:
            load_tables(arena, weights)
        self.transport = LocalTables(arena, ArenaWriter(world.same_role_here))

    def lookups(self, thread: int, held: HeldRows | None = None, through: RowTransport | None = None) -> Lookups:
        """Pull and push for one thread, ``through`` another transport than the plain one if given; ``held`` keeps what
        it had pulled when it is cut.
        """
        return Lookups(through or self.transport, self.placement, self._options, thread, held)
