"""Opens a trainer's tables, wherever the rows are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ssmpi.embedding.shards import Tables, local_tables, remote_tables
from ssmpi.embedding.table import KEYS, ROWS, Arena
from ssmpi.runtime.mpi.push_counts import SentPushes
from ssmpi.runtime.mpi.world import World
from ssmpi.runtime.words import counted
from ssmpi.state.checkpoint import parent
from ssmpi.state.checkpoint.arena_writer import ArenaWriter
from ssmpi.state.checkpoint.model_files import load_tables
from ssmpi.state.memory_needs import hot_memory
from ssmpi.state.recovery.start import Start

if TYPE_CHECKING:
    from ssmpi.config import Config, HasTables


def placing(cardinalities: Sequence[int], servers: int, start: Start) -> str:
    """What ``open_tables`` does, for the log."""
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


def open_tables(config: Config, world: World, data: HasTables, start: Start) -> Tables:
    """Those of the embedding PSs of the topology, or one in this trainer if there are none."""
    servers, placement = config.topology.embedding_ps, config.placement(data)
    if servers:
        sent = SentPushes(start.memory, config.topology.threads, servers)
        tables = remote_tables(world.embedding, placement, config.rows, config.waiting, sent, config.tracking)
        tables.compare_pushes()
        return tables
    keys = start.memory.part(KEYS, shared=False) if placement.keyed else None
    hot = () if start.memory.holds(ROWS) else hot_memory(config, placement, 0, world.roles_here)
    rows = start.memory.part(ROWS, shared=False, folder=config.embedding.storage, hot=hot)
    arena = Arena(config.rows, placement, 0, config.run.seed, rows, keys)
    load_rows(config, arena, start)
    return local_tables(
        arena, saver=ArenaWriter(world.same_role_here).prefault(arena, config.checkpoint), traffic=world.traffic
    )
