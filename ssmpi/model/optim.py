"""Steps the dense replica, straight into the shared vector."""

from __future__ import annotations

import numpy as np

from ssmpi.comm.shared_memory import Memory, PrivateMemory
from ssmpi.compiled.kernel_args import KernelArgs
from ssmpi.core.protocols import DenseModel, DenseOptimizer
from ssmpi.model.dense_optimizers import optimizer_of
from ssmpi.model.executor import update_all
from ssmpi.model.options import DenseOptions
from ssmpi.model.replica import Replica, ThreadModel

__all__ = ["DenseOptimizer", "ReplicaOptimizer", "dense_optimizer"]


class ReplicaOptimizer:
    """The optimizer that ``[dense]`` names. The trainer's threads share its state, which lies in ``memory`` and stays
    with its trainer: it is not synchronized.
    """

    def __init__(self, options: DenseOptions, replica: Replica, memory: Memory) -> None:
        self._optimizer, size = optimizer_of(options), replica.vector.size
        self._names, count = self._optimizer.vectors, len(self._optimizer.vectors)
        memory = memory if count else PrivateMemory()
        self._vectors = memory.allocate(4 * count * size).view(np.float32).reshape(count, size)
        if not memory.kept:
            self._vectors[:] = self._optimizer.initial
        self._args = KernelArgs((size, count), (self._optimizer.numbers, self._vectors))

    def step(self, model: DenseModel, factor: float) -> None:
        """One step; the gradients are used up."""
        if isinstance(model, ThreadModel):
            model.update(self._args.words, factor)
        else:
            update_all(self._args.words, *model.arrays, factor)

    def state(self) -> dict[str, np.ndarray]:
        """Its vectors, float32 (parameters,) each."""
        return dict(zip(self._names, self._vectors, strict=True))


def dense_optimizer(options: DenseOptions, replica: Replica, memory: Memory | None = None) -> DenseOptimizer:
    """The optimizer that ``[dense]`` names, for all threads of one trainer; its state lies in ``memory``."""
    return ReplicaOptimizer(options, replica, memory or PrivateMemory())
