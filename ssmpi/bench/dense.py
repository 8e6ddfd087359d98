"""References for the whole training loop: the bare dense step, its matrix products alone, and PyTorch's step of the
same network.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import cycle

import torch

from ssmpi.bench import plain_pytorch
from ssmpi.bench.plain_pytorch import BatchSource
from ssmpi.config import Config
from ssmpi.model.network import DENSE, DotInteraction, Linear
from ssmpi.model.replica import Replica, dense_optimizer

Step = Callable[[], object]


def steps_of(kind: str, config: Config, process: int = 0) -> list[Step]:
    """One step function per thread for the bare step or its products (``gemm``); a single one for PyTorch, where
    ``process`` is one of several.
    """
    match kind:
        case "bare step":
            return bare_steps(config, BatchSource(config))
        case "gemm":
            return gemm_steps(config)
        case "pytorch":
            return [plain_pytorch.plain_step(config, BatchSource(config))]
        case "tuned pytorch":
            return [plain_pytorch.tuned_step(config, BatchSource(config), process)]
    raise ValueError(f"no steps of {kind!r}")


def bare_steps(config: Config, source: BatchSource) -> list[Step]:
    """A step for each Hogwild thread: forward, backward and update on given rows. No embeddings, no messages."""
    replica = Replica(config.network, config.model.precision, config.run.seed)
    optimizer = dense_optimizer(config.dense, replica)

    def step_of(thread: int) -> Step:
        model = replica.thread_model()
        batches = cycle(source.with_rows(thread))

        def step() -> None:
            batch, rows = next(batches)
            model.forward_backward(batch.dense, rows, batch.labels)
            optimizer.step(model, 1.0)

        return step

    return [step_of(thread) for thread in range(config.topology.threads)]


def gemm_steps(config: Config) -> list[Step]:
    """For each thread the products of one step: the forward product and the two backward products of every layer and of
    the interaction.
    """
    batch, network = config.data.batch_size, config.network
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[config.model.precision]

    def step_of() -> Step:
        products: list[Product] = []
        for operator in network.operators:
            if isinstance(operator, Linear):
                (source,) = operator.inputs
                sizes = network.widths[source], operator.outputs
                products += linear_products(batch, *sizes, dtype, by_input=source != DENSE)
            elif isinstance(operator, DotInteraction):
                products += interaction_products(batch, 1 + operator.tables, network.inputs.dim, dtype)

        def step() -> None:
            for product, left, right, out in products:
                product(left, right, out=out)

        return step

    return [step_of() for _ in range(config.topology.threads)]


Product = tuple[Callable[..., torch.Tensor], torch.Tensor, torch.Tensor, torch.Tensor]


def linear_products(batch: int, inputs: int, outputs: int, dtype: torch.dtype, *, by_input: bool) -> list[Product]:
    """The products of one layer on separate buffers; that of the input gradient only if ``by_input``."""
    x, g = torch.randn(batch, inputs, dtype=dtype), torch.randn(batch, outputs, dtype=dtype)
    w = torch.randn(outputs, inputs, dtype=dtype)
    forward, by_weight = (torch.mm, x, w.t(), torch.empty_like(g)), (torch.mm, g.t(), x, torch.empty_like(w))
    return [forward, by_weight, *([(torch.mm, g, w, torch.empty_like(x))] if by_input else [])]


def interaction_products(batch: int, vectors: int, dim: int, dtype: torch.dtype) -> list[Product]:
    """The batched products of the dot interaction, forward and backward."""
    x = torch.randn(batch, vectors, dim, dtype=dtype)
    square = torch.randn(batch, vectors, vectors, dtype=dtype)
    return [
        (torch.bmm, x, x.transpose(1, 2), torch.empty_like(square)),
        (torch.bmm, square, x, torch.empty_like(x)),
        (torch.bmm, square.transpose(1, 2), x, torch.empty_like(x)),
    ]
