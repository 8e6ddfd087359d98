"""Steps the dense replica, straight into the shared vector."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from ssmpi.model import kernels
from ssmpi.model.options import DenseOptions
from ssmpi.model.replica import Replica, Twin


class DenseOptimizer(Protocol):
    """Applies a twin's gradients to the shared weights."""

    def step(self, twin: Twin, factor: float) -> None:
        """One step at ``factor`` times the learning rate."""


class SGD:
    """w -= rate * g."""

    def __init__(self, options: DenseOptions, replica: Replica) -> None:
        self._rate = options.rate

    def step(self, twin: Twin, factor: float) -> None:
        """One step."""
        twin.weights.add_(twin.gradients, alpha=-self._rate * factor)


class Adagrad:
    """state += g^2; w -= rate * g / (sqrt(state) + epsilon) (Duchi et al. 2011). The trainer's threads share the state.

    The state stays with its trainer: it is not synchronized.
    """

    def __init__(self, options: DenseOptions, replica: Replica) -> None:
        self._options = options
        self.state = np.full(replica.vector.size, options.initial_state, np.float32)

    def step(self, twin: Twin, factor: float) -> None:
        """One step."""
        options = self._options
        kernels.adagrad(*twin.arrays, self.state, options.rate * factor, options.epsilon)


def dense_optimizer(options: DenseOptions, replica: Replica) -> DenseOptimizer:
    """The optimizer that ``[dense]`` names, for all threads of one trainer."""
    kinds: dict[str, type[SGD] | type[Adagrad]] = {"sgd": SGD, "adagrad": Adagrad}
    return kinds[options.optimizer](options, replica)
