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
from ssmpi.embedding.server import EmbeddingServer
from ssmpi.embedding.table import ROWS, Arena

if TYPE_CHECKING:
    from ssmpi.config import Config


def serve_embeddings(config: Config, world: World, folder: Path, start: Start = BEGINNING) -> bool:
    """The whole life of an embedding PS."""
    setting, model = config.data.folder, start.checkpoint
    origin = DataOrigin.of_model(model, setting) if model else DataOrigin.of_data(Path(setting))
    placement = place(origin.cardinalities, config.topology.embedding_ps)
    memory = start.memory.part(ROWS, shared=config.embedding.transport != "messages")
    arena = Arena(config.rows, placement, world.index, config.run.seed, memory)
    if model:
        load_tables(arena, model, world.index)
    start.memory.ready()
    world.start_heartbeat(config.waiting)
    service = Service(world.embedding, config.waiting)
    cpu_usage.set_up()
    saver = ArenaWriter(world.same_role_here)
    service.serve(config.topology.trainers, EmbeddingServer(arena, service, saver, memory.address).handle)
    return True
