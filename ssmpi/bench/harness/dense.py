"""The ceilings: the bare dense step, which is all that this program computes, and the matrix products inside it."""

from __future__ import annotations

from collections.abc import Callable
from itertools import cycle

import torch

from ssmpi.bench.harness.rows import Source
from ssmpi.config import Config
from ssmpi.data.schema import DENSE_FEATURES, SPARSE_FEATURES
from ssmpi.model.optim import dense_optimizer
from ssmpi.model.replica import Replica
from ssmpi.model.zoo import MODELS

Step = Callable[[], object]


def bare_steps(config: Config, source: Source) -> list[Step]:
    """A step for each Hogwild thread: forward, backward and update on given rows. No embeddings, no messages."""
    make = MODELS[config.model.name]
    replica = Replica(lambda: make(config.model, DENSE_FEATURES, SPARSE_FEATURES), config.run.seed)
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
    """For each thread the products of one DLRM step: forward, and the two backward ones of every layer and of the
    interaction.
    """
    batch = config.data.batch_size
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[config.model.precision]
    vectors = 1 + SPARSE_FEATURES
    bottom, top = config.model.widths(DENSE_FEATURES, SPARSE_FEATURES)

    def step_of() -> Step:
        products = [
            *mlp_products(batch, bottom, dtype)[1:],
            *mlp_products(batch, top, dtype),
        ]  # no gradient by the input
        products += interaction_products(batch, vectors, config.model.bottom[-1], dtype)

        def step() -> None:
            for product, left, right, out in products:
                product(left, right, out=out)

        return step

    return [step_of() for _ in range(config.topology.threads)]


Product = tuple[Callable[..., torch.Tensor], torch.Tensor, torch.Tensor, torch.Tensor]


def mlp_products(batch: int, sizes: tuple[int, ...], dtype: torch.dtype) -> list[Product]:
    """Three products a layer on buffers of their own; the first is that for the gradient by the MLP's input."""
    found: list[Product] = []
    for inputs, outputs in zip(sizes, sizes[1:], strict=False):
        x, g = torch.randn(batch, inputs, dtype=dtype), torch.randn(batch, outputs, dtype=dtype)
        w = torch.randn(outputs, inputs, dtype=dtype)
        found += [
            (torch.mm, g, w, torch.empty_like(x)),
            (torch.mm, x, w.t(), torch.empty_like(g)),
            (torch.mm, g.t(), x, torch.empty_like(w)),
        ]
    return found


def interaction_products(batch: int, vectors: int, dim: int, dtype: torch.dtype) -> list[Product]:
    """The batched products of the dot interaction, forward and backward."""
    x = torch.randn(batch, vectors, dim, dtype=dtype)
    square = torch.randn(batch, vectors, vectors, dtype=dtype)
    return [
        (torch.bmm, x, x.transpose(1, 2), torch.empty_like(square)),
        (torch.bmm, square, x, torch.empty_like(x)),
        (torch.bmm, square.transpose(1, 2), x, torch.empty_like(x)),
    ]
