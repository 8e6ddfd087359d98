"""An embedding PS rank: makes or loads its part of the tables and serves it until every trainer said goodbye."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ssmpi.checkpoint.arena_writer import ArenaWriter
from ssmpi.checkpoint.data_origin import DataOrigin
from ssmpi.checkpoint.model_files import load_tables
from ssmpi.checkpoint.start import BEGINNING, Start
from ssmpi.comm.service import Service
from ssmpi.comm.world import World
from ssmpi.core import cpu_usage
from ssmpi.embedding.placement import place
from ssmpi.embedding.push_counts import AppliedPushes
from ssmpi.embedding.server import EmbeddingServer
from ssmpi.embedding.table import ROWS, Arena

if TYPE_CHECKING:
    from ssmpi.comm.rank_memory import RankMemory
    from ssmpi.comm.shared_memory import Memory
    from ssmpi.config import Config


def serve_embeddings(config: Config, world: World, folder: Path, start: Start = BEGINNING) -> bool:
    """The whole life of an embedding PS."""
    model = start.checkpoint
    arena, memory = rows_in(start.memory, config, world.index, model)
    if model:
        load_tables(arena, model, world.index)
    applied = AppliedPushes(start.memory, world.embedding.size)
    start.memory.ready()
    world.start_heartbeat(config.waiting)
    service = Service(world.embedding, config.waiting)
    cpu_usage.set_up()
    server = EmbeddingServer(arena, service, ArenaWriter(world.same_role_here), memory.address, applied)
    service.serve(config.topology.trainers, server.handle)
    return True


def rows_in(memory: RankMemory, config: Config, index: int, model: Path | None = None) -> tuple[Arena, Memory]:
    """The rows of embedding PS ``index`` in its memory, kept or initial ones, and where they lie. The tables are those
    of a saved ``model``, or of the run's data.
    """
    setting = config.data.folder
    origin = DataOrigin.of_model(model, setting) if model else DataOrigin.of_data(Path(setting))
    placement = place(origin.cardinalities, config.topology.embedding_ps)
    part = memory.part(ROWS, shared=config.embedding.transport != "messages")
    return Arena(config.embedding, placement, index, config.run.seed, part), part
