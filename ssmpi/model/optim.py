"""Steps the dense replica, straight into the shared vector."""

from __future__ import annotations

import numpy as np

from ssmpi.comm.shared_memory import Memory, PrivateMemory
from ssmpi.core.protocols import DenseModel, DenseOptimizer
from ssmpi.model import kernels
from ssmpi.model.options import DenseOptions
from ssmpi.model.replica import Replica, ThreadModel

__all__ = ["SGD", "Adagrad", "DenseOptimizer", "dense_optimizer"]


class SGD:
    """w -= rate * g."""

    def __init__(self, options: DenseOptions, replica: Replica, memory: Memory) -> None:
        self._rate = options.rate

    def step(self, model: DenseModel, factor: float) -> None:
        """One step."""
        kernels.sgd(*model.arrays, self._rate * factor)

    def state(self) -> dict[str, np.ndarray]:
        """Nothing."""
        return {}


class Adagrad:
    """state += g^2; w -= rate * g / (sqrt(state) + epsilon) (Duchi et al. 2011). The trainer's threads share the state.

    The state stays with its trainer: it is not synchronized.
    """

    def __init__(self, options: DenseOptions, replica: Replica, memory: Memory) -> None:
        self._rate, self._epsilon = options.rate, options.epsilon
        self._sums = memory.allocate(replica.vector.nbytes).view(np.float32)
        if not memory.kept:
            self._sums[:] = options.initial_state

    def step(self, model: DenseModel, factor: float) -> None:
        """One step."""
        rate = self._rate * factor
        if isinstance(model, ThreadModel):
            model.adagrad(self._sums, rate, self._epsilon)
        else:
            kernels.adagrad(*model.arrays, self._sums, rate, self._epsilon)

    def state(self) -> dict[str, np.ndarray]:
        """The sums of squares, float32 (parameters,)."""
        return {"sums": self._sums}


def dense_optimizer(options: DenseOptions, replica: Replica, memory: Memory | None = None) -> DenseOptimizer:
    """The optimizer that ``[dense]`` names, for all threads of one trainer; its state lies in ``memory``."""
    kinds: dict[str, type[SGD] | type[Adagrad]] = {"sgd": SGD, "adagrad": Adagrad}
    return kinds[options.optimizer](options, replica, memory or PrivateMemory())
