"""Controls for ``TopK``: DLRM with other masks behind ``bottom.2``, which send as many values. Computed by torch.

``model.name = "top_k_controls.py:own_gradient_95"`` passes the largest values, and of their gradient the largest
entries, wherever they are; ``random_95`` passes values at random places, drawn anew for every batch.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch

from ssmpi.model.network import Form, Inputs, Network, Operator
from ssmpi.model.networks.dlrm import dlrm
from ssmpi.model.options import ModelOptions
from ssmpi.model.top_k import TopK, with_top_k

PLACE = "bottom.2"


def largest(values: torch.Tensor, kept: int) -> torch.Tensor:
    """values (batch, width) where they are among the ``kept`` largest in size, otherwise 0."""
    places = values.abs().sort(dim=1, descending=True, stable=True).indices[:, :kept]
    return values * torch.zeros_like(values).scatter_(1, places, 1.0)


class OwnLargest(torch.autograd.Function):
    """The largest values, and the largest entries of their gradient."""

    @staticmethod
    def forward(context: torch.autograd.function.FunctionCtx, values: torch.Tensor, kept: int) -> torch.Tensor:
        """As ``largest``."""
        context.kept = kept
        return largest(values, kept)

    @staticmethod
    def backward(context: torch.autograd.function.FunctionCtx, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        """As ``largest``, by the gradient's own size."""
        return largest(gradient, context.kept), None


@dataclass(frozen=True)
class OwnGradient(Operator):
    """Selects the gradient by its own size."""

    kept: int

    def form(self, width: int) -> Form:
        """As wide as its input."""
        return Form(width)

    def by_torch(self, parameters: Mapping[str, torch.Tensor], values: torch.Tensor) -> torch.Tensor:
        """The output."""
        return OwnLargest.apply(values, self.kept)


@dataclass(frozen=True)
class RandomPlaces(Operator):
    """Selects at random."""

    kept: int

    def form(self, width: int) -> Form:
        """As wide as its input."""
        return Form(width)

    def by_torch(self, parameters: Mapping[str, torch.Tensor], values: torch.Tensor) -> torch.Tensor:
        """The output."""
        places = torch.rand_like(values).argsort(dim=1)[:, : self.kept]
        return values * torch.zeros_like(values).scatter_(1, places, 1.0)


def controlled(inputs: Inputs, kind: type[OwnGradient] | type[RandomPlaces], share: str) -> Network:
    """DLRM of the study's sizes, with a control where ``model.top_k`` would put a ``TopK``."""
    torch.manual_seed(1)
    network = with_top_k(dlrm(ModelOptions(top=(512, 256, 128, 1)), inputs), [f"{PLACE}: {share}"])
    operators = [
        kind(item.name, item.inputs, item.kept(network.widths[item.name])) if isinstance(item, TopK) else replace(item)
        for item in network.operators
    ]
    return Network(tuple(operators), inputs)


def own_gradient_95(inputs: Inputs) -> Network:
    """0.95 dropped, gradients by their own size."""
    return controlled(inputs, OwnGradient, "0.95")


def random_95(inputs: Inputs) -> Network:
    """0.95 dropped at random."""
    return controlled(inputs, RandomPlaces, "0.95")


def own_gradient_90(inputs: Inputs) -> Network:
    """0.9 dropped, gradients by their own size."""
    return controlled(inputs, OwnGradient, "0.9")


def random_90(inputs: Inputs) -> Network:
    """0.9 dropped at random."""
    return controlled(inputs, RandomPlaces, "0.9")
