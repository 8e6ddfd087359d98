"""A sync PS rank: holds its shard of the center until every trainer said goodbye."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ssmpi.comm.service import Service
from ssmpi.comm.world import World
from ssmpi.sync.easgd import Center

if TYPE_CHECKING:
    from pathlib import Path

    from ssmpi.config import Config


def serve_center(config: Config, world: World, folder: Path, start_from: Path | None = None) -> bool:
    """The whole life of a sync PS. The first trainer says where the center starts."""
    world.beat(config.waiting)
    service = Service(world.center, config.waiting)
    service.serve(config.topology.trainers, Center(config.sync.alpha, service).handle)
    return True
