"""A sync PS rank: holds its shard of the center until every trainer has said goodbye."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ssmpi.comm.service import Service
from ssmpi.comm.world import World
from ssmpi.host import cpu_usage
from ssmpi.model import kernels
from ssmpi.model.options import DenseOptions
from ssmpi.recovery.start import BEGINNING, Start
from ssmpi.sync import exchanges

if TYPE_CHECKING:
    from ssmpi.config import Config


def serve_center(config: Config, world: World, folder: Path, start: Start = BEGINNING) -> bool:
    """The whole life of a sync PS. The first trainer sends the initial center."""
    world.start_heartbeat(config.waiting)
    service = Service(world.center, config.waiting)
    handler = exchanges.handler(
        config.sync, optimizer(config.dense), service, config.topology, world.center.directory, start.memory
    )
    cpu_usage.set_up()
    service.serve(config.topology.trainers, handler)
    return True


class ShardSGD:
    """As ``model.optim.SGD``, for one shard, without torch, which a sync PS does not load."""

    def __init__(self, options: DenseOptions, weights: np.ndarray) -> None:
        self._rate, self._weights, self.state = options.rate, weights, np.empty(0, np.float32)

    def __call__(self, gradients: np.ndarray, factor: float) -> None:
        """One step."""
        kernels.sgd(self._weights, gradients, self._rate * factor)


class ShardAdagrad:
    """As ``model.optim.Adagrad``. ``state`` are the sums of squares."""

    def __init__(self, options: DenseOptions, weights: np.ndarray) -> None:
        self._options, self._weights = options, weights
        self.state = np.full(weights.size, options.initial_state, np.float32)

    def __call__(self, gradients: np.ndarray, factor: float) -> None:
        """One step."""
        options = self._options
        kernels.adagrad(self._weights, gradients, self.state, options.rate * factor, options.epsilon)


def optimizer(options: DenseOptions) -> Callable[[np.ndarray], ShardSGD | ShardAdagrad]:
    """``optimizer(weights)`` makes the optimizer of ``[dense]`` for one shard."""
    kinds: dict[str, type[ShardSGD] | type[ShardAdagrad]] = {"sgd": ShardSGD, "adagrad": ShardAdagrad}
    return partial(kinds[options.optimizer], options)
