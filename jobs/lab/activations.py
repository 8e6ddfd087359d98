"""The part of ``exchanges`` about activations: what selecting the strongest ones costs on one core,
beside numpy's ``partition``, which only finds the smallest of them, and what an edge of a group sends of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ssmpi.model.edges import Edge
from ssmpi.model.executor import PIECE
from ssmpi.model.top_k import TopK
from ssmpi.model.top_k_kernels import by_strongest, strongest

WIDTH = 256
SHARES = 0.75, 0.9, 0.95, 0.98


@dataclass(frozen=True, kw_only=True)
class SelectionCost:
    """Microseconds an example: of the forward and the backward pass, and of ``partition``; and the bytes that an edge
    sends an example, both ways, in float32 and in bfloat16.
    """

    share: float
    kept: int
    forward_us: float
    backward_us: float
    partition_us: float
    bytes: int
    bytes_bf16: int

    @property
    def times_less(self) -> float:
        """Than a dense edge in float32."""
        return 2 * 4 * WIDTH / self.bytes


def measure(rounds: int) -> list[SelectionCost]:
    """Print a line for each share: medians over ``rounds`` turns, of values after a ReLU that are new in each."""
    draw = np.random.default_rng(1)
    turns = [np.maximum(draw.normal(size=(PIECE, WIDTH)), 0).astype(np.float32) for _ in range(rounds)]
    costs = [cost(share, turns) for share in SHARES]
    print(table(costs, rounds))
    return costs


def cost(share: float, turns: list[np.ndarray]) -> SelectionCost:
    """Of one share, of batches float32 (examples, width)."""
    kept = TopK("t", ("x",), share).kept(WIDTH)
    out, places = np.empty_like(turns[0]), np.empty((PIECE, kept), np.int32)
    bodies: list[Callable[[np.ndarray], object]] = [
        lambda x: strongest(x.view(np.int32), kept, out.view(np.int32), places),
        lambda x: by_strongest(x, places, out, False),
        lambda x: np.partition(x, WIDTH - kept, axis=1),
    ]
    seconds = np.array([[timed(body, x) for body in bodies] for x in (turns[0], *turns)])[1:]  # the first compiles
    forward, backward, partition = (1e6 * np.median(seconds, axis=0) / PIECE).tolist()
    edges = [Edge("x", WIDTH, 0, 1, half, gradient=True, kept=kept) for half in (False, True)]
    dense, half = (edge.message + edge.back for edge in edges)
    return SelectionCost(
        share=share, kept=kept, forward_us=forward, backward_us=backward, partition_us=partition, bytes=dense,
        bytes_bf16=half,
    )  # fmt: skip


def timed(body: Callable[[np.ndarray], object], x: np.ndarray) -> float:
    """CPU seconds of this thread."""
    began = time.thread_time()
    body(x)
    return time.thread_time() - began


def table(costs: list[SelectionCost], rounds: int) -> str:
    """One line per share."""
    lines = [
        f"the strongest of {WIDTH} activations, medians of {rounds} turns of {PIECE} examples, one core; microseconds "
        "an example; bytes of an edge there and back",
        "share  kept  forward  backward  partition  bytes  times less  bytes bf16  times less",
    ]
    for c in costs:
        lines.append(
            f"{c.share:5}  {c.kept:4}  {c.forward_us:7.2f}  {c.backward_us:8.3f}  {c.partition_us:9.2f}  {c.bytes:5}  "
            f"{c.times_less:10.1f}  {c.bytes_bf16:10}  {2 * 4 * WIDTH / c.bytes_bf16:10.1f}"
        )
    return "\n".join(lines)
