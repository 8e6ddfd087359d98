"""The step by torch's operators and autograd: of networks with custom operators, of bfloat16 on processors without
instructions for it, and where torch's library lacks a function that the compiled step calls.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch.nn.functional import binary_cross_entropy_with_logits

from ssmpi.model import custom_network, reference
from ssmpi.model.network import Network
from ssmpi.runtime.errors import SettingsError

Named = Sequence[tuple[str, np.ndarray]]  # views of a vector, by parameter


class AutogradStep:
    """``step(dense, rows, labels, first_example)`` as ``executor.CompiledStep``, over float32 ``weights`` and
    ``gradients``; ``half``: products of wide layers in bfloat16.
    """

    def __init__(self, network: Network, weights: Named, gradients: Named, *, half: bool = False) -> None:
        torch.set_num_threads(1)  # threads inside an operator fight with the worker threads; see DESIGN
        self._network, self._half = network, half
        self._weights = {name: torch.from_numpy(values).requires_grad_() for name, values in weights}
        self._gradients = [torch.from_numpy(values) for _, values in gradients]

    def __call__(
        self, dense: np.ndarray, rows: np.ndarray, labels: np.ndarray, first_example: int = 0
    ) -> tuple[np.ndarray, np.ndarray]:
        """Logits float32 (batch,) and gradients of the mean log-loss by ``rows``, like them and contiguous."""
        taken = torch.from_numpy(rows).requires_grad_()
        given = torch.from_numpy(dense), taken
        logits = reference.logits(self._network, self._weights, *given, half=self._half, first_example=first_example)
        loss = binary_cross_entropy_with_logits(logits, torch.from_numpy(labels), reduction="sum")
        wanted = (taken, *self._weights.values())
        found = torch.autograd.grad(loss / max(1, len(labels)), wanted, materialize_grads=True)
        for place, gradient in zip(self._gradients, found[1:], strict=True):
            place.copy_(gradient)
        return logits.detach().numpy(), found[0].contiguous().numpy()


def try_step(network: Network) -> list[str]:
    """Run forward and backward over dummy batches of two and of one example; returns the names of parameters that get
    no gradient. SettingsError says what is wrong with a custom operator.
    """
    draw, inputs, unreached = torch.Generator().manual_seed(0), network.inputs, list[str]()
    weights = {name: torch.rand(shape, generator=draw).requires_grad_() for name, shape in network.layout}
    for batch in (2, 1):
        rows = torch.rand(batch, inputs.tables, network.rows.width, generator=draw).requires_grad_()
        logits = reference.logits(network, weights, torch.rand(batch, inputs.dense, generator=draw), rows)
        try:
            found = torch.autograd.grad(logits.sum(), (rows, *weights.values()), allow_unused=True)
        except RuntimeError as error:
            kinds = custom_network.kinds_of(network.operators)
            raise SettingsError(
                f"{kinds}: the backward pass over dummy examples fails: {error}; use torch's operators in by_torch, do "
                "not detach all of its inputs, and change none in place"
            ) from error
        names = ["embedding rows", *weights]
        unreached = [name for name, gradient in zip(names, found, strict=True) if gradient is None]
    return unreached
