"""Steps the dense replica, straight into the shared vector."""

from __future__ import annotations

import numpy as np

from ssmpi.model import kernels
from ssmpi.model.dense_optimizers import optimizer_of
from ssmpi.model.executor import update_all
from ssmpi.model.options import DenseOptions
from ssmpi.model.replica import Replica, ThreadModel
from ssmpi.runtime.compiled.kernel_args import KernelArgs
from ssmpi.runtime.mpi.shared_memory import Memory, PrivateMemory
from ssmpi.runtime.optimizer_options import STEP
from ssmpi.runtime.protocols import DenseModel, DenseOptimizer

__all__ = ["ClippedOptimizer", "DenseOptimizer", "ReplicaOptimizer", "dense_optimizer"]


class ReplicaOptimizer:
    """The optimizer that ``[dense]`` names. The trainer's threads share its state, which lies in ``memory`` and stays
    with its trainer: it is not synchronized. Every thread's step moves the common means of Adam, so all of them count.
    """

    def __init__(self, options: DenseOptions, replica: Replica, memory: Memory) -> None:
        optimizer, size = optimizer_of(options), replica.vector.size
        self._names, count = optimizer.vectors, len(optimizer.vectors)
        memory = memory if count else PrivateMemory()
        place = memory.allocate(4 * count * size + 8 * optimizer.counts)
        self._vectors = place[: 4 * count * size].view(np.float32).reshape(count, size)
        self._steps = place[4 * count * size :].view(np.float64)
        if not memory.kept:
            self._vectors[:], self._steps[:] = optimizer.initial, 0.0
        counted = self._steps if optimizer.counts else np.zeros(1)
        self._args = KernelArgs((size, count), (optimizer.numbers, counted, self._vectors))

    def step(self, model: DenseModel, factor: float) -> None:
        """One step; the gradients are used up."""
        if isinstance(model, ThreadModel):
            model.update(self._args.words, factor)
        else:
            update_all(self._args.words, *model.arrays, factor)

    def state(self) -> dict[str, np.ndarray]:
        """Its vectors, float32 (parameters,) each, and the steps if they count, float64 (1,)."""
        vectors = dict(zip(self._names, self._vectors, strict=True))
        return {**vectors, STEP: self._steps} if self._steps.size else vectors


class ClippedOptimizer:
    """Bounds the norm of each gradient that ``own`` steps with: that of one thread's batch, or of all trainers' where
    they step together.
    """

    def __init__(self, own: DenseOptimizer, norm: float) -> None:
        self._own, self._norm, self.state = own, norm, own.state

    def step(self, model: DenseModel, factor: float) -> None:
        """One step; the gradients are used up."""
        kernels.clip_norm(model.arrays[1], self._norm)
        self._own.step(model, factor)


def dense_optimizer(options: DenseOptions, replica: Replica, memory: Memory | None = None) -> DenseOptimizer:
    """The optimizer that ``[dense]`` names, for all threads of one trainer; its state lies in ``memory``."""
    optimizer = ReplicaOptimizer(options, replica, memory or PrivateMemory())
    return ClippedOptimizer(optimizer, options.clip_norm) if options.clip_norm else optimizer
