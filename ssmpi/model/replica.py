"""One trainer's dense parameters in one flat float32 vector that torch, numpy and MPI see without copies.

Each worker thread has a ``ThreadModel``: a module of its own over the same memory. Threads cannot share one module,
because torch would find its parameters modified in place between forward and backward; here that is Hogwild, and meant.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch
from torch import nn

from ssmpi.comm.shared_memory import Memory, PrivateMemory
from ssmpi.core.errors import DataError
from ssmpi.model.dlrm import Step, center_inputs, initial_values


class Replica:
    """``vector`` float32 (parameters,), shared without locks by a trainer's worker threads and its shadow thread;
    ``memory`` is where it lies. With the ``means`` of the dense features, float32 (features,), it begins centered.
    """

    def __init__(
        self, make: Callable[[], nn.Module], seed: int, memory: Memory | None = None, means: np.ndarray | None = None
    ) -> None:
        self._make, self.memory = make, memory or PrivateMemory()
        module = make()
        generator = np.random.default_rng([seed, 0])
        self.layout = [(name, tuple(p.shape)) for name, p in module.named_parameters()]
        initial = np.concatenate([initial_values(shape, generator).ravel() for _, shape in self.layout])
        self.vector = self.memory.allocate(initial.nbytes).view(np.float32)
        self.vector[:] = initial
        if means is not None:
            (_, weight), (_, bias), *_ = self._by_name(self.vector)
            center_inputs(weight, bias, means)

    def thread_model(self, vector: np.ndarray | None = None) -> ThreadModel:
        """A module over ``vector`` (default: the live one) with gradients of its own."""
        return ThreadModel(self._make(), self.vector if vector is None else vector)

    def datasets(self, vector: np.ndarray) -> list[tuple[str, np.ndarray, dict[str, Any]]]:
        """What to save of ``vector``: views of the parameters, named as in the module's state_dict, without
        attributes.
        """
        return [(name, values, {}) for name, values in self._by_name(vector)]

    def load(self, path: Path) -> np.ndarray:
        """Read a vector of which ``datasets`` were written; DataError if it is of another model."""
        vector = np.empty_like(self.vector)
        with h5py.File(path, "r", locking=False) as saved:
            for name, values in self._by_name(vector):
                if name not in saved or saved[name].shape != values.shape:
                    found = saved[name].shape if name in saved else "nothing"
                    raise DataError(
                        f"{path}: parameter {name} is {found}, this model's is {values.shape}: set model.bottom and "
                        "model.top to what it was trained with"
                    )
                values[...] = saved[name][()]
        return vector

    def _by_name(self, vector: np.ndarray) -> list[tuple[str, np.ndarray]]:
        """Views of ``vector`` by parameter name."""
        views, start = [], 0
        for name, shape in self.layout:
            size = int(np.prod(shape))
            views.append((name, vector[start : start + size].reshape(shape)))
            start += size
        return views


class ThreadModel:
    """``module`` sees ``weights`` as its parameters and leaves their gradients in ``gradients``, both flat tensors.

    ``arrays`` are the same two for compiled kernels.
    """

    def __init__(self, module: nn.Module, vector: np.ndarray) -> None:
        self.module = module
        self.weights = torch.from_numpy(vector)  # a tensor of its own: a version counter of its own
        self.gradients = torch.zeros_like(self.weights)
        self.arrays = vector, self.gradients.numpy()
        start = 0
        for parameter in module.parameters():
            size = parameter.numel()
            parameter.data = self.weights[start : start + size].view(parameter.shape)
            parameter.grad = self.gradients[start : start + size].view(parameter.shape)
            start += size
        own_step = getattr(module, "own_step", None)
        self._forward_backward: Step = own_step(*self.arrays) if own_step else self.by_autograd

    def forward_backward(
        self, dense: np.ndarray, rows: np.ndarray, labels: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Logits float32 (batch,) before the update and gradients (batch, features, dim) of the mean log-loss by
        ``rows``.

        The dense gradients are left in ``gradients``. What is returned is valid until the next call.
        """
        return self._forward_backward(dense, rows, labels)

    def by_autograd(self, dense: np.ndarray, rows: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The same for any module, for models that do not write an ``own_step``."""
        leaf = torch.from_numpy(rows).requires_grad_()
        logits = self.module(torch.from_numpy(dense), leaf)
        self.gradients.zero_()
        nn.functional.binary_cross_entropy_with_logits(logits, torch.from_numpy(labels)).backward()
        assert leaf.grad is not None
        return logits.detach().float().numpy(), leaf.grad.numpy()

    def score(self, dense: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Logits float32 (batch,), without gradients."""
        with torch.inference_mode():
            logits: np.ndarray = self.module(torch.from_numpy(dense), torch.from_numpy(rows)).numpy()
        return logits
