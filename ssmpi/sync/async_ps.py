"""Asynchronous dense parameter servers: push gradients, pull weights (Downpour SGD; Dean et al., NeurIPS 2012)::

    on the trainer    a = a + g;  w_i = w_i - optimizer(g)          every step; a: what is not pushed yet
    a round           push a, a = 0;  pull c;  w_i = w_i + c - snapshot_i
    on the sync PSs   c = c - optimizer(a)          SGD or Adagrad as [dense] says, with the PSs' own accumulators

At ``fixed_rate`` with ``every_iterations = 1`` it is plain asynchronous SGD, with k it is Downpour with n_push =
n_fetch = k; in the shadow pace pushing and pulling run beside training, and each step takes the lock of its thread's
account, which is free but while a push empties it. ``alpha`` has no say: the sync PSs hold the weights. Every gradient
gets there, those of a trainer's end too; between a trainer's pull and its next push the center takes n - 1 pushes of
others on average, which is the staleness of its gradients.

With a ``codec`` a push holds of a what the codec sends, and the rest stays in a, thread by thread (``pushes``). It is
in checkpoints, and at the end of a run it is what the center has not heard. Pulls stay whole.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ssmpi import compress
from ssmpi.comm.rank_memory import RankMemory
from ssmpi.comm.service import Service
from ssmpi.comm.shared_memory import placed
from ssmpi.core.log import log
from ssmpi.core.protocols import DenseModel, DenseStep
from ssmpi.core.topology import Topology
from ssmpi.core.traffic import Link
from ssmpi.sync import pushes
from ssmpi.sync.base import shards
from ssmpi.sync.center import Centered
from ssmpi.sync.center_shard import EXCHANGE, STATE, Center, MakeStep, Step
from ssmpi.sync.options import DENSE, RoundOptions
from ssmpi.sync.peers import Peers
from ssmpi.sync.pushes import Encoders, PendingGradients


@dataclass(frozen=True)
class AsyncPSOptions:
    """``[sync.async_ps]`` has no settings of its own."""


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
    no_codec = ""

    def __init__(self, options: RoundOptions, weights: np.ndarray, peers: Peers, thread: int = 0) -> None:
        super().__init__(options, weights, peers, thread)
        self.alpha = 1.0
        self._accounts: dict[int, PendingGradients] = {}
        self._encoders: dict[int, Encoders] = {}
        self._encodes = options.codec != DENSE
        self._sum = np.empty(max(f.stop - f.start for f in self.fragments), np.float32)

    @classmethod
    def words_beside(cls, options: RoundOptions) -> int:
        """The factor of the learning rate."""
        return 1

    @classmethod
    def round_bytes(cls, options: RoundOptions, topology: Topology, parameters: int) -> dict[Link, float]:
        """With a codec the push is as long as the density asked for makes it."""
        found = super().round_bytes(options, topology, parameters)
        if options.codec == DENSE:
            return found
        parts = shards(parameters, options.fragments, topology.sync_ps)
        each = options.pace == "fixed_rate" and options.by == "thread"
        accounts = 1 if each else topology.threads
        return {**found, Link.CENTER_PUSH: pushes.expected_bytes(options, parts, accounts)}

    @staticmethod
    def server(options: RoundOptions, optimizer: MakeStep, service: Service, memory: RankMemory) -> Center:
        """A center that takes steps."""
        return GradientCenter(optimizer, options.fragments, service, memory, encoded=options.codec != DENSE)

    @classmethod
    def kept_vectors(cls, options: RoundOptions, threads: int) -> int:
        """What each thread has not pushed yet."""
        return threads

    def optimizer(self, thread: int) -> AccumulatingStep:
        """Steps the replica and keeps the gradients for the next push."""
        local = self.peers.local
        if thread not in self._accounts:
            gradients = local.memory.array(f"gradients of thread {thread}", self.weights.shape, np.float32)
            self._accounts[thread] = PendingGradients(gradients, local.factor())
            if self._encodes:
                parts = shards(self.weights.size, len(self.fragments), len(self._servers))
                seed = self.peers.trainers.rank, thread
                made = Encoders(self.options, parts, local.replica.layers, local.memory, seed)
                self._encoders[thread], local.unsent[thread] = made, (gradients, made.state)
        return AccumulatingStep(local.optimizer, self._accounts[thread])

    def exchange(self, snapshot: np.ndarray, fragment: int, active: bool) -> np.ndarray:
        """The center after the step by what is pushed; a push ends with the factor of the learning rate."""
        if self._encodes:
            return self.ask(EXCHANGE, fragment, self._encoded(fragment))
        gradients, factor = self._sum[: snapshot.size], 1.0
        gradients[:] = 0.0
        for account in self._accounts.copy().values():
            account.move(self.fragments[fragment], gradients)
            factor = account.factor
        messages = [np.append(shard, np.float32(factor)) for shard in self.shards_of(gradients, fragment)]
        return self.ask(EXCHANGE, fragment, messages)

    def _encoded(self, fragment: int) -> list[np.ndarray]:
        """A push by a codec, of every account that is this synchronizer's."""
        by_thread, factor = [], 1.0
        for thread, account in self._accounts.copy().items():
            by_thread.append(account.encode(self._encoders[thread], fragment))
            factor = account.factor
        sent, traffic = [payloads for payloads in by_thread if payloads], self.peers.center.meter.traffic
        return [pushes.message([p[k] for p in sent], factor, traffic) for k in range(len(self._servers))]

    @property
    def _remembers(self) -> bool:
        """Whether this trainer, the first one, fetches what the sync PSs' optimizer remembers."""
        return self.peers.trainers.rank == 0 and bool(self.peers.local.optimizer.state())

    @property
    def _own(self) -> str:
        """Before the names of what only this one of so many trainers can go on with."""
        return f"trainer {self.peers.trainers.rank} of {self.peers.trainers.size}/"

    def state(self) -> dict[str, np.ndarray]:
        """On the first trainer what the sync PSs' optimizer remembers, which is the trainers' own one; a copy. On every
        trainer what a codec has not sent, and what the codec goes on with, by thread.
        """
        found = {"center": self.fetch(STATE)} if self._remembers else {}
        for thread, (residual, codec) in self.peers.local.unsent.items():
            found |= {f"{self._own}residual {thread}": residual, f"{self._own}codec {thread}": codec}
        return found

    def resume(self, saved: Mapping[str, np.ndarray]) -> None:
        """Give it back to them, and to the accounts. Those of another number of trainers are dropped: they are of other
        gradients than these will have, and who took whose would make some count twice.
        """
        if self._remembers:
            for fragment, part in enumerate(self.fragments):
                self.ask(STATE, fragment, self.shards_of(saved["center"][part], fragment))
        residuals, codecs = (_by_thread(saved, f"{self._own}{name} ") for name in ("residual", "codec"))
        unsent = self.peers.local.unsent
        if residuals and unsent:
            pushes.take_back({thread: residual for thread, (residual, _) in unsent.items()}, residuals)
        elif any("residual" in name for name in saved) and self.peers.trainers.rank == 0:
            why = "by another number of trainers" if unsent else "with a codec, and sync.codec = 'dense' keeps nothing"
            log.warning(f"what had not been pushed is dropped: the checkpoint was saved {why}")
        for thread, (_, state) in unsent.items():
            if thread in codecs and codecs[thread].shape == state.shape:  # else thresholds are found anew
                state[:] = codecs[thread]

    def remember(self, servers: Collection[int], saved: Mapping[str, np.ndarray]) -> None:
        """As the base class; the other sync PSs keep theirs."""
        if "center" not in saved:
            return
        for fragment, part in enumerate(self.fragments):
            shards = self.shards_of(saved["center"][part], fragment)
            self.ask(STATE, fragment, [shard if i in servers else shard[:0] for i, shard in enumerate(shards)])

    def close(self) -> None:
        """Push the rest of every thread whose rounds these are. What a codec keeps back stays."""
        for _ in self.fragments:
            self.round()


class GradientCenter(Center):
    """Steps by every push. ``optimizer(weights)`` makes the step of a shard, with state of its own. Pushes are
    ``encoded`` or whole.
    """

    def __init__(
        self, optimizer: MakeStep, fragments: int, service: Service, memory: RankMemory, *, encoded: bool = False
    ) -> None:
        super().__init__(fragments, service, memory, shared=False)
        self._encoded, self._sum = encoded, np.empty(0, np.float32)
        if encoded:
            compress.compile_kernels(DENSE)  # decoding is the same for all
        self._optimizer, self._of_optimizer = optimizer, memory.part("optimizer", shared=False)
        self._steps: list[Step] = []
        optimizer(np.empty(0, np.float32))(np.empty(0, np.float32), 0.0)  # compiles now, not in the first round

    def exchange(self, fragment: int, client: tuple[int, int], words: np.ndarray, reply: np.ndarray) -> None:
        """The weights after the step."""
        if self._encoded:
            gradients = self._sum[: self.shards[fragment].size]
            self._steps[fragment](gradients, pushes.read_push(words.view(np.uint8), gradients))
        else:
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
        self._sum = np.empty(max(shard.size for shard in self.shards), np.float32)
        states = [step.state for step in self._steps]
        vector = placed(self._of_optimizer, np.concatenate(states))
        for step, state in zip(self._steps, np.split(vector, np.cumsum([s.size for s in states])[:-1]), strict=True):
            step.state = state


def _by_thread(saved: Mapping[str, np.ndarray], name: str) -> dict[int, np.ndarray]:
    """Arrays whose names begin so, by the number that follows."""
    return {int(key.removeprefix(name)): values for key, values in saved.items() if key.startswith(name)}
