"""A sync PS rank: holds its shard of the center until every trainer has said goodbye."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from ssmpi import sync
from ssmpi.model import optimizers
from ssmpi.model.options import DenseOptions
from ssmpi.runtime.host import cpu_usage
from ssmpi.runtime.mpi.service import Service
from ssmpi.runtime.mpi.world import World
from ssmpi.state.recovery.start import BEGINNING, Start

if TYPE_CHECKING:
    from ssmpi.config import Config


def serve_center(config: Config, world: World, start: Start = BEGINNING) -> bool:
    """The whole life of a sync PS. The first trainer sends the initial center."""
    world.start_heartbeat(config.waiting)
    service = Service(world.center)
    handler = sync.center_handler(
        config.sync, optimizer(config.dense), service, config.topology, world.center.directory, start.memory
    )
    cpu_usage.set_up()
    service.serve(config.topology.trainers, handler)
    return True


class ShardOptimizer:
    """The optimizer of ``[dense]`` for one shard of the weights, without torch, which a sync PS does not load."""

    def __init__(self, options: DenseOptions, weights: np.ndarray) -> None:
        self._optimizer, self._weights = optimizers.optimizer_of(options), weights
        self.state = np.full(weights.size * len(self._optimizer.vectors), self._optimizer.initial, np.float32)

    def __call__(self, gradients: np.ndarray, factor: float) -> None:
        """One step."""
        now = optimizers.at_step(self._optimizer.numbers, np.zeros(1), factor)  # counts in none of them
        state = self.state.reshape(len(self._optimizer.vectors), self._weights.size)
        optimizers.update(now, self._weights, gradients, state, 0)


def optimizer(options: DenseOptions) -> Callable[[np.ndarray], ShardOptimizer]:
    """``optimizer(weights)`` makes the optimizer of ``[dense]`` for one shard."""
    return partial(ShardOptimizer, options)
