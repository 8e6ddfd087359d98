"""The step of a network with operators of the user's own, for which there are no kernels: all of it by torch's
operators and autograd.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch.nn.functional import binary_cross_entropy_with_logits

from ssmpi.model import reference
from ssmpi.model.network import Network

Named = Sequence[tuple[str, np.ndarray]]  # views of a vector, by parameter


class AutogradStep:
    """``step(dense, rows, labels)`` as ``executor.CompiledStep``, over float32 ``weights`` and ``gradients``."""

    def __init__(self, network: Network, weights: Named, gradients: Named) -> None:
        torch.set_num_threads(1)  # threads inside an operator fight with the worker threads; see DESIGN
        self._network = network
        self._weights = {name: torch.from_numpy(values).requires_grad_() for name, values in weights}
        self._gradients = [torch.from_numpy(values) for _, values in gradients]

    def __call__(self, dense: np.ndarray, rows: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Logits float32 (batch,) and gradients of the mean log-loss by ``rows``, like them and contiguous."""
        taken = torch.from_numpy(rows).requires_grad_()
        logits = reference.logits(self._network, self._weights, torch.from_numpy(dense), taken)
        loss = binary_cross_entropy_with_logits(logits, torch.from_numpy(labels), reduction="sum")
        wanted = (taken, *self._weights.values())
        found = torch.autograd.grad(loss / max(1, len(labels)), wanted, materialize_grads=True)
        for place, gradient in zip(self._gradients, found[1:], strict=True):
            place.copy_(gradient)
        return logits.detach().numpy(), found[0].contiguous().numpy()
