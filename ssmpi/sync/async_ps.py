"""Asynchronous dense parameter servers: push gradients, pull weights (Downpour SGD; Dean et al., NeurIPS 2012)::

    on the trainer    a = a + g;  w_i = w_i - optimizer(g)          every step; a: what is not pushed yet
    a round           push a, a = 0;  pull c;  w_i = w_i + c - snapshot_i
    on the sync PSs   c = c - optimizer(a)          SGD or Adagrad as [dense] says, with the PSs' own accumulators

At ``fixed_rate`` with ``every_iterations = 1`` it is plain asynchronous SGD, with k it is Downpour with n_push =
n_fetch = k; in the shadow pace pushing and pulling run beside training, and each step takes the lock of its thread's
account, which is free but while a push empties it. ``alpha`` has no say: the sync PSs hold the weights. Every gradient
gets there, those of a trainer's end too; between a trainer's pull and its next push the center takes n - 1 pushes of
others on average, which is the staleness of its gradients.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ssmpi.comm.rank_memory import RankMemory
from ssmpi.comm.service import Service
from ssmpi.comm.shared_memory import placed
from ssmpi.core.protocols import DenseModel, DenseStep
from ssmpi.sync.center import Centered
from ssmpi.sync.center_shard import EXCHANGE, STATE, Center, MakeStep, Step
from ssmpi.sync.options import RoundOptions
from ssmpi.sync.peers import Peers


@dataclass(frozen=True)
class AsyncPSOptions:
    """``[sync.async_ps]`` has no settings of its own."""


class PendingGradients:
    """The ``gradients`` of one worker thread that are not pushed yet, float32 (parameters,); a push of them has the
    ``factor`` of the last step. The lock is free but for the moment of a push."""

    def __init__(self, gradients: np.ndarray, factor: float) -> None:
        self._gradients, self._lock, self.factor = gradients, threading.Lock(), factor

    def add(self, gradients: np.ndarray, factor: float) -> None:
        """Keep one step's gradients and the factor of its learning rate."""
        with self._lock:
            self._gradients += gradients
            self.factor = factor

    def move(self, part: slice, into: np.ndarray) -> None:
        """Hand over what there is of one part of the vector."""
        with self._lock:
            into += self._gradients[part]
            self._gradients[part] = 0.0


class AccumulatingStep:
    """The trainer's own optimizer, which also keeps what is to be pushed."""

    def __init__(self, optimizer: DenseStep, account: PendingGradients) -> None:
        self._optimizer, self._account = optimizer, account

    def step(self, model: DenseModel, factor: float) -> None:
        """One step."""
        self._account.add(model.arrays[1], factor)
        self._optimizer.step(model, factor)


class AsyncPS(Centered):
    """Pushes what its worker threads' gradients add up to and follows the weights of the sync PSs."""

    Options: ClassVar[type] = AsyncPSOptions

    def __init__(self, options: RoundOptions, weights: np.ndarray, peers: Peers, thread: int = 0) -> None:
        super().__init__(options, weights, peers, thread)
        self.alpha = 1.0
        self._accounts: dict[int, PendingGradients] = {}
        self._sum = np.empty(max(f.stop - f.start for f in self.fragments), np.float32)

    @staticmethod
    def server(options: RoundOptions, optimizer: MakeStep, service: Service, memory: RankMemory) -> Center:
        """A center that takes steps."""
        return GradientCenter(optimizer, options.fragments, service, memory)

    def optimizer(self, thread: int) -> AccumulatingStep:
        """Steps the replica and keeps the gradients for the next push."""
        local = self.peers.local
        if thread not in self._accounts:
            gradients = local.memory.array(f"gradients of thread {thread}", self.weights.shape, np.float32)
            self._accounts[thread] = PendingGradients(gradients, local.factor())
        return AccumulatingStep(local.optimizer, self._accounts[thread])

    def exchange(self, snapshot: np.ndarray, fragment: int, active: bool) -> np.ndarray:
        """The center after the step by what is pushed; a push ends with the factor of the learning rate."""
        gradients, factor = self._sum[: snapshot.size], 1.0
        gradients[:] = 0.0
        for account in self._accounts.copy().values():
            account.move(self.fragments[fragment], gradients)
            factor = account.factor
        messages = [np.append(shard, np.float32(factor)) for shard in self.shards_of(gradients, fragment)]
        return self.ask(EXCHANGE, fragment, messages)

    def state(self) -> dict[str, np.ndarray]:
        """On the first trainer what the sync PSs' optimizer remembers, which is the trainers' own one; a copy."""
        first = self.peers.trainers.rank == 0 and self.peers.local.optimizer.state()
        return {"center": self.fetch(STATE)} if first else {}

    def resume(self, saved: Mapping[str, np.ndarray]) -> None:
        """Give it back to them."""
        if self.state():
            for fragment, part in enumerate(self.fragments):
                self.ask(STATE, fragment, self.shards_of(saved["center"][part], fragment))

    def remember(self, servers: Collection[int], saved: Mapping[str, np.ndarray]) -> None:
        """As the base class; the other sync PSs keep theirs."""
        if "center" not in saved:
            return
        for fragment, part in enumerate(self.fragments):
            shards = self.shards_of(saved["center"][part], fragment)
            self.ask(STATE, fragment, [shard if i in servers else shard[:0] for i, shard in enumerate(shards)])

    def close(self) -> None:
        """Push the rest of every thread whose rounds these are."""
        for _ in self.fragments:
            self.round()


class GradientCenter(Center):
    """Steps by every push. ``optimizer(weights)`` makes the step of a shard, with state of its own."""

    def __init__(self, optimizer: MakeStep, fragments: int, service: Service, memory: RankMemory) -> None:
        super().__init__(fragments, service, memory, shared=False)
        self._optimizer, self._of_optimizer = optimizer, memory.part("optimizer", shared=False)
        self._steps: list[Step] = []
        optimizer(np.empty(0, np.float32))(np.empty(0, np.float32), 0.0)  # compiles now, not in the first round

    def exchange(self, fragment: int, client: tuple[int, int], words: np.ndarray, reply: np.ndarray) -> None:
        """The weights after the step."""
        self._steps[fragment](words[:-1], float(words[-1]))
        reply[:] = self.shards[fragment]

    def state(self, fragment: int) -> np.ndarray:
        """What the optimizer remembers of this shard."""
        return self._steps[fragment].state

    def start(self, fragment: int, values: np.ndarray) -> None:
        """With an optimizer that remembers nothing."""
        if self._steps:
            self._steps[fragment].state[:] = self._optimizer(values).state
        super().start(fragment, values)

    def allocate(self) -> None:
        """Also what the optimizer remembers of each shard."""
        super().allocate()
        self._steps = [self._optimizer(shard) for shard in self.shards]
        states = [step.state for step in self._steps]
        vector = placed(self._of_optimizer, np.concatenate(states))
        for step, state in zip(self._steps, np.split(vector, np.cumsum([s.size for s in states])[:-1]), strict=True):
            step.state = state
