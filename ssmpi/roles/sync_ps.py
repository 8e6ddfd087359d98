"""A sync PS rank: holds its shard of the center until every trainer said goodbye."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ssmpi import usage
from ssmpi.comm.service import Service
from ssmpi.comm.world import World
from ssmpi.model import kernels
from ssmpi.model.options import DenseOptions
from ssmpi.sync import ALGORITHMS

if TYPE_CHECKING:
    from ssmpi.config import Config


def serve_center(config: Config, world: World, folder: Path, start_from: Path | None = None) -> bool:
    """The whole life of a sync PS. The first trainer says where the center starts."""
    world.beat(config.waiting)
    service = Service(world.center, config.waiting)
    kind: Any = ALGORITHMS[config.sync.algorithm]
    center = kind.server(config.sync, optimizer(config.dense), service)
    usage.set_up()
    service.serve(config.topology.trainers, center.handle)
    return True


def optimizer(options: DenseOptions) -> Callable[[np.ndarray], Callable[[np.ndarray, float], None]]:
    """``optimizer(weights)`` is what ``[dense]`` says for one shard: a step by gradients and a factor of the rate.

    As ``model.optim``, without torch, which a sync PS does not load.
    """

    def sgd(weights: np.ndarray) -> Callable[[np.ndarray, float], None]:
        def step(gradients: np.ndarray, factor: float) -> None:
            np.subtract(weights, np.float32(options.rate * factor) * gradients, out=weights)

        return step

    def adagrad(weights: np.ndarray) -> Callable[[np.ndarray, float], None]:
        state = np.full(weights.size, options.initial_state, np.float32)
        return lambda g, factor: kernels.adagrad(weights, g, state, options.rate * factor, options.epsilon)

    return {"sgd": sgd, "adagrad": adagrad}[options.optimizer]
