"""The dense parameters that a trainer owns in one flat float32 vector that torch, numpy and MPI see without copies.

Each worker thread has a ``ThreadModel``: the network over the same memory, with buffers and gradients of its own.
Weights may change between a forward and a backward pass: that is Hogwild, on purpose.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ssmpi.model import blas, brgemm, custom_network, kernels
from ssmpi.model.estimates import Estimates
from ssmpi.model.executor import CompiledStep, update_all
from ssmpi.model.member_program import MemberProgram, whole
from ssmpi.model.network import Network, floats_in
from ssmpi.model.optimizers import optimizer_of
from ssmpi.model.options import DenseOptions
from ssmpi.model.parameters import by_name, initial_vector
from ssmpi.model.program import Program
from ssmpi.model.top_k import check_exact
from ssmpi.runtime.compiled.aligned import aligned
from ssmpi.runtime.compiled.kernel_args import KernelArgs
from ssmpi.runtime.errors import DataError
from ssmpi.runtime.files import hdf5
from ssmpi.runtime.mpi.shared_memory import Memory, PrivateMemory
from ssmpi.runtime.optimizer_options import STEP
from ssmpi.runtime.protocols import DenseModel, DenseOptimizer

Step = Callable[[np.ndarray, np.ndarray, np.ndarray, int], tuple[np.ndarray, np.ndarray]]


class Replica:
    """``vector`` float32 (parameters,), of those that are ``owned``, shared without locks by a trainer's worker threads
    and its shadow thread. It lies at the start of ``weights``, which are in the layout of the member's ``part`` for its
    own lanes (default: all of the network), and these in ``memory``; they are not initialized if an earlier process
    filled that. With the ``means`` of the dense features, float32 (features,), it starts centered.
    """

    def __init__(
        self, network: Network, precision: str, seed: int, memory: Memory | None = None,
        means: np.ndarray | None = None, part: MemberProgram | None = None,
    ) -> None:  # fmt: skip
        self.network, self.precision, self.memory = network, precision, memory or PrivateMemory()
        self.part = part or whole(network)
        self.owned = self.part.owned
        initial = self.owned.of(initial_vector(network, seed, means))
        self.weights = self.memory.allocate(4 * floats_in(self.part.layout)).view(np.float32)
        self.vector = self.weights[: initial.size]
        if not self.memory.kept:
            self.vector[:] = initial
        self.measured, self.estimates = Estimates(network, learning=True), Estimates(network)

    @classmethod
    def saved(cls, network: Network, precision: str, path: Path) -> Replica:
        """That of the ``network`` in the file ``path`` of a saved model; DataError if it is another model's."""
        found = cls(network, precision, seed=0)
        found.vector[:] = found.load(path)
        return found

    def measure_in(self, values: np.ndarray) -> None:
        """Let thread models keep what they measure in ``values``, as in ``Estimates``."""
        self.measured = Estimates(self.network, learning=True, given=values)

    def scoring_model(self, vector: np.ndarray | None = None) -> ThreadModel:
        """As ``thread_model``, to score only: by the common ``estimates``."""
        return ThreadModel(self.network, self.vector if vector is None else vector, self.precision, self.estimates)

    def thread_model(self, vector: np.ndarray | None = None) -> ThreadModel:
        """The network over ``vector``, float32 (parameters of the network,), with gradients of its own; by default over
        the live one, which must hold all parameters.
        """
        assert vector is not None or self.owned.complete, "another rank owns some of the parameters"
        vector = self.vector if vector is None else vector
        return ThreadModel(self.network, vector, self.precision, self.measured)

    def datasets(self, vector: np.ndarray) -> list[tuple[str, np.ndarray, dict[str, Any]]]:
        """What to save: of ``vector``, float32 (parameters of the network,), views by parameter, and the estimates; no
        attributes.
        """
        views = by_name(self.network.layout, vector)
        return [*((name, values, {}) for name, values in views), *self.estimates.datasets()]

    def load(self, path: Path) -> np.ndarray:
        """Read what is owned of a model that was saved as ``datasets`` of all parameters, and take its estimates;
        DataError if it is another model.
        """
        vector, shapes = np.empty_like(self.vector), dict(self.network.layout)
        with hdf5.saved_model(path) as saved:
            for name, values in by_name(self.owned.layout, vector):
                if name not in saved or saved[name].shape != shapes[name]:
                    found = saved[name].shape if name in saved else "nothing"
                    raise DataError(
                        f"{path}: parameter {name} is {found}, this model's is {shapes[name]}: set model.bottom and "
                        "model.top to what it was trained with"
                    )
                values[...] = saved[name][()]
            for estimates in (self.estimates, self.measured):
                estimates.load(saved)
        if not np.isfinite(vector).all():
            raise DataError(f"{path}: not all of its parameters are numbers; the saved model is damaged")
        return vector


class ThreadModel:
    """A network over ``weights``, float32 (parameters,), with gradients of its own. ``estimates`` learn in training, or
    are those to score with. Create it on its worker thread.
    """

    _compiled: CompiledStep | None = None

    def __init__(
        self, network: Network, vector: np.ndarray, precision: str, estimates: Estimates | None = None
    ) -> None:  # fmt: skip
        self._network, self.weights, self._gradients, self._owned = network, vector, aligned(vector.shape), vector.size
        self._gradients.fill(0.0)
        self._step: Step
        sgemm = None if custom_network.own_operators(network.operators) else blas.sgemm()
        if not sgemm:
            check_exact(network)
        self.estimates = estimates or Estimates(network)
        scoring = None if self.estimates.learning else self.estimates
        compiled = CompiledStep(Program(network, estimates=scoring), self.arrays[0], None, sgemm) if sgemm else None
        self._score = compiled.score if compiled else self._by_torch
        found = brgemm.kernels(precision) if sgemm else None
        if sgemm and (found or precision == "fp32"):
            program = Program(network, precision, self.estimates)
            self._step = self._compiled = CompiledStep(program, *self.arrays, sgemm, found or brgemm.NONE)
        else:
            check_exact(network)
            from ssmpi.model.autograd_step import AutogradStep  # here, because importing torch takes seconds

            weights, gradients = (by_name(network.layout, array) for array in self.arrays)
            self._step = AutogradStep(network, weights, gradients, half=precision == "bf16")

    @property
    def gradients(self) -> np.ndarray:
        """Of the last step, float32 (parameters,); to be asked for after each."""
        if self._compiled:
            self._compiled.finish()
        return self._gradients

    @property
    def arrays(self) -> tuple[np.ndarray, np.ndarray]:
        """Weights and gradients, of what is owned here."""
        return self.weights[: self._owned], self.gradients[: self._owned]

    def forward_backward(
        self, dense: np.ndarray, rows: np.ndarray, labels: np.ndarray, first_example: int = 0
    ) -> tuple[np.ndarray, np.ndarray]:
        """Logits float32 (batch,) before the update and gradients (batch, tables, width) of the mean log-loss by
        ``rows``; dropout draws by the numbers of the examples, from ``first_example`` on.

        The dense gradients are left in ``gradients``. What is returned is valid until the next call.
        """
        return self._step(dense, rows, labels, first_example)

    def update(self, optimizer: np.ndarray, factor: float) -> None:
        """Step the weights by an optimizer's arguments, see ``optimizers``; the gradients are used up."""
        if self._compiled:
            self._compiled.update(optimizer, factor)
        else:
            update_all(optimizer, *self.arrays, factor)

    def score(self, dense: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Logits float32 (batch,), without gradients."""
        return self._score(dense, rows)

    def _by_torch(self, dense: np.ndarray, rows: np.ndarray) -> np.ndarray:
        import torch

        from ssmpi.model import reference

        parameters = {name: torch.from_numpy(values) for name, values in by_name(self._network.layout, self.weights)}
        with torch.inference_mode():
            logits = reference.logits(self._network, parameters, torch.from_numpy(dense), torch.from_numpy(rows))
        return logits.numpy()


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
