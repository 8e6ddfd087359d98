"""Synchronous data parallelism: in every step the gradients of all trainers become one (large-batch SGD).

    g = sum_i b_i g_i / sum_i b_i          g_i: of the mean loss over trainer i's batch of b_i examples

Dense gradients meet in an all-reduce, and every trainer takes the same step with them; row gradients are exchanged so
that each row gets one update, the sum over all trainers (see ``synchronous_rows``). With ``embedding.prefetch = false``
n trainers with batches of b compute what one process computes with batches of n b, up to rounding: the anchor of
exactness for everything that is faster. With prefetch the rows are one step old, as they are in every other algorithm.

Before each step all trainers agree on it: one all-reduce of n^2 + 2 float64 words, with how many rows go from each
trainer to each other. That is 0.5 KB for 8 trainers and 32 KB for 64, little compared with the dense gradients, but
quadratic.

A trainer that is out of data takes part with 0 examples, until all are.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ssmpi.runtime.mpi.waiting import wait
from ssmpi.runtime.protocols import DenseModel, DenseStep
from ssmpi.runtime.topology import Topology
from ssmpi.runtime.traffic import Link
from ssmpi.sync.base import Exchange, RoundCost
from ssmpi.sync.ma import Average, reduced_bytes
from ssmpi.sync.none import NoSync
from ssmpi.sync.options import RoundOptions
from ssmpi.sync.round_context import RoundContext
from ssmpi.sync.synchronous_rows import SynchronousRows


@dataclass(frozen=True)
class SynchronousOptions:
    """``[sync.synchronous]`` has no settings of its own."""


class Synchronous(NoSync):
    """Every replica takes the step of the whole batch. There is nothing to do between steps."""

    Options: ClassVar[type] = SynchronousOptions
    in_the_step = True
    no_codec = "adds gradients up in an all-reduce, which adds numbers and no payloads"

    def __init__(self, options: RoundOptions, exchange: Exchange) -> None:
        super().__init__(options, exchange)
        context = self.context
        self.idle = context.replicas.size == 1  # one trainer alone steps on its own
        self._step = CommonStep(context, exchange, self.weights.size)
        self._rows = SynchronousRows(self._step, context)
        if not self.idle:
            self.push_rows = self._rows.push

    @classmethod
    def cost(cls, options: RoundOptions, topology: Topology, parameters: int) -> RoundCost:
        """The all-reduce of the dense gradients with their weight, and the agreement; row gradients come on top."""
        n = topology.replicas
        return RoundCost({Link.TRAINERS: reduced_bytes(4 * (parameters + 1) + 8 * (n * n + 2), n)})

    @classmethod
    def option_error(cls, options: RoundOptions) -> str:
        """Gradients are needed in the step itself, all of them and in every step."""
        if (options.pace, options.every_iterations) != ("fixed_rate", 1):
            return (
                "exchanges gradients inside of every step: set sync.pace = 'fixed_rate' and sync.every_iterations = 1"
            )
        return ""

    @classmethod
    def topology_error(cls, topology: Topology) -> str:
        """Threads of one replica would step one after the other, not together."""
        if topology.threads == 1:
            return ""
        return (
            f"lets all batches of a step see the same weights, which {topology.threads} threads on one replica cannot: "
            f"set topology.threads = 1 and topology.trainers = {topology.lanes}"
        )

    def common(self) -> list[np.ndarray]:
        """The replica, and its optimizer state."""
        return [self.weights, *self.context.local.optimizer.state().values()]

    def optimizer(self, thread: int) -> DenseStep:
        """Steps by the gradients of all trainers."""
        return super().optimizer(thread) if self.idle else self._step

    def close(self) -> None:
        """Take the others' steps too, so that this replica stays equal to theirs, until no trainer has examples."""
        if self.idle:
            return
        model = self.context.local.thread_model()
        taken = True
        while taken:
            self._rows.follow()
            taken = self._step.take(model)


class CommonStep:
    """The step that all trainers take together, by the mean of their gradients, float32 (``parameters``,)."""

    def __init__(self, context: RoundContext, exchange: Exchange, parameters: int) -> None:
        self._context, self._exchange = context, exchange
        self._average = Average(context.replicas, context.waiting, parameters)
        self._examples, self._factor, self._began = 0.0, 1.0, 0.0

    def agree(self, examples: int, factor: float, counts: np.ndarray) -> tuple[float, float, np.ndarray]:
        """What all trainers need to know about a step before they take it; called first in every step.

        ``counts`` int (trainers,) says how many rows go to whom. Returns the examples of all trainers, the
        learning-rate factor, a mean over them, and the counts of all, (trainers, trainers).
        """
        rank, size = self._context.replicas.rank, self._context.replicas.size
        self._began = time.monotonic()
        words = np.zeros(2 + size * size)
        words[:2] = examples, examples * factor
        words[2:].reshape(size, size)[rank] = counts
        wait(self._context.replicas.iallreduce(words), self._context.waiting, "the other trainers' step")
        total = words[0]
        self._examples, self._factor = float(examples), words[1] / max(total, 1.0)
        return total, self._factor, words[2:].reshape(size, size).astype(int)

    def take(self, model: DenseModel) -> bool:
        """Step by the mean gradient; False if no trainer had any. All trainers call, after ``agree``."""
        _, gradients = model.arrays
        mean = self._average.of(gradients, self._examples)
        if mean is None:
            return False
        gradients[:] = mean
        self._context.local.optimizer.step(model, self._factor)
        self._exchange.count(time.monotonic() - self._began, 0.0)
        return True

    def step(self, model: DenseModel, factor: float) -> None:
        """As ``DenseStep``; the factor of all trainers is agreed on with the rows."""
        self.take(model)
