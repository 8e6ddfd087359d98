"""Asynchronous dense parameter servers: push gradients, pull weights (Downpour SGD; Dean et al., NeurIPS 2012)::

    on the trainer    a = a + g;  w_i = w_i - optimizer(g)          every step; a: what is not pushed yet
    a round           push a, a = 0;  pull c;  w_i = w_i + c - snapshot_i
    on the sync PSs   c = c - optimizer(a)          SGD or Adagrad as [dense] says, with the PSs' own accumulators

At ``fixed_rate`` with ``every_iterations = 1`` it is plain asynchronous SGD, with k it is Downpour with n_push =
n_fetch = k; in the shadow pace pushing and pulling run beside training, and each step takes the lock of its thread's
pending gradients, which is free but while a push empties them. ``alpha`` is not used: the sync PSs hold the weights.
Every gradient gets there, those of a trainer's end too; between a trainer's pull and its next push the center takes
n - 1 pushes of others on average, which is the staleness of its gradients.

With a ``codec`` a push holds of a what the codec sends, and the rest stays in a for the next push: error feedback. Each
thread has its own a: in the paper (Gupta et al., KDD 2021) Hogwild threads share one residual without locks, so that an
entry may be sent twice or get lost, and the residual must be drained now and then. What is left is part of checkpoints;
at the end of a run it is lost to the center.

An encoded push to a sync PS is float32 ``factor`` of the learning rate and uint32 number of payloads, then the
payloads, one for each thread that has made a step; a dense one is the sum over the threads and the factor, as float32
words.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ssmpi import compress
from ssmpi.compress import ShardCodecs
from ssmpi.runtime.files.log import log
from ssmpi.runtime.mpi.push_counts import COUNT, AppliedPushes, SentPushes
from ssmpi.runtime.mpi.rank_memory import ArrayMemory
from ssmpi.runtime.mpi.service import Service
from ssmpi.runtime.mpi.shared_memory import placed
from ssmpi.runtime.protocols import DenseModel, DenseStep
from ssmpi.runtime.topology import Topology
from ssmpi.runtime.traffic import Link, Traffic
from ssmpi.sync.base import RoundCost
from ssmpi.sync.center import (
    APPLIED,
    EXCHANGE,
    STATE,
    Center,
    CenterExchange,
    CenterSynchronizer,
    MakeStep,
    Step,
    shards,
)
from ssmpi.sync.options import DENSE, RoundOptions, codec_of, count_entries, expected_bytes
from ssmpi.sync.round_context import RoundContext

HEAD = 8  # bytes of an encoded push before its payloads


@dataclass(frozen=True)
class AsyncPSOptions:
    """``[sync.async_ps]`` has no settings of its own."""


class AsyncPS(CenterSynchronizer):
    """Pushes what its worker threads' gradients add up to and follows the weights of the sync PSs."""

    Options: ClassVar[type] = AsyncPSOptions
    steps_elsewhere = True
    exchange: ParameterServerExchange

    @classmethod
    def make_exchange(
        cls, options: RoundOptions, weights: np.ndarray, context: RoundContext, thread: int = 0
    ) -> ParameterServerExchange:
        """Of gradients for weights."""
        return ParameterServerExchange(options, weights, context, thread)

    @classmethod
    def make_center(cls, options: RoundOptions, optimizer: MakeStep, service: Service, memory: ArrayMemory) -> Center:
        """Which takes optimizer steps."""
        return GradientCenter(optimizer, options, service, memory)

    @classmethod
    def cost(cls, options: RoundOptions, topology: Topology, parameters: int) -> RoundCost:
        """The vector there, with the factor of the learning rate for each sync PS, and back; with a codec, the expected
        bytes at the configured density, and the time for every thread's payload. The pending gradients of each thread
        are kept.
        """
        pushed, seconds = 4.0 * (parameters + topology.sync_ps), 0.0
        if options.codec != DENSE:
            threads = topology.replica_lanes // options.clients(topology.replica_lanes)
            payloads = expected_bytes(codec_of(options), shards(parameters, topology.sync_ps))
            pushed = HEAD * topology.sync_ps + threads * payloads
            seconds = 1e-9 * parameters * threads * codec_of(options)[0].nanoseconds.push
        sent = {Link.CENTER_PUSH: pushed, Link.CENTER_PULL: 4.0 * parameters}
        return RoundCost(sent, seconds, topology.replica_lanes)

    def optimizer(self, thread: int) -> AccumulatingStep:
        """Steps the replica and keeps the gradients for the next push."""
        return AccumulatingStep(self.context.local.optimizer, self.exchange.pending(thread))

    def last_rounds(self) -> None:
        """Push what is left of the threads that this synchronizer serves. What a codec holds back stays."""
        self.round()


class AccumulatingStep:
    """The trainer's optimizer, which also accumulates the gradients to push."""

    def __init__(self, optimizer: DenseStep, pending: PendingGradients) -> None:
        self._optimizer, self._pending = optimizer, pending

    def step(self, model: DenseModel, factor: float) -> None:
        """One step."""
        self._pending.add(model.arrays[1], factor)
        self._optimizer.step(model, factor)


class PendingGradients:
    """The ``gradients`` of one worker thread that are not pushed yet, float32 (parameters,); a push carries the
    ``factor`` of the last step. The lock is contended only during a push.
    """

    def __init__(self, gradients: np.ndarray, factor: float) -> None:
        self.gradients, self._lock, self.factor = gradients, threading.Lock(), factor
        self._encoded = False  # since the last step

    def add(self, gradients: np.ndarray, factor: float) -> None:
        """Add one step's gradients and store the factor of its learning rate."""
        with self._lock:
            self.gradients += gradients
            self.factor, self._encoded = factor, False

    def move(self, into: np.ndarray) -> None:
        """Add the gradients to a vector."""
        with self._lock:
            into += self.gradients
            self.gradients[:] = 0.0

    def encode(self, codecs: ShardCodecs) -> list[np.ndarray] | None:
        """A payload for each sync PS, valid until the next; None if there was no step since the last one, so that
        pauses change nothing.
        """
        with self._lock:
            if self._encoded:
                return None
            self._encoded = True
            return codecs.take(self.gradients)


def message(payloads: Sequence[np.ndarray], factor: float, traffic: Traffic) -> np.ndarray:
    """The encoded push to one sync PS, uint8, of each thread's payload for it."""
    head = np.empty(HEAD, np.uint8)
    head[:4].view(np.float32)[0], head[4:].view(np.uint32)[0] = factor, len(payloads)
    count_entries(payloads, traffic)
    return np.concatenate([head, *payloads])


def read_push(message: np.ndarray, gradients: np.ndarray) -> float:
    """Fill ``gradients`` float32 (shard,) with the sum of the payloads of a push, uint8; returns its factor.
    PayloadError if one is damaged.
    """
    factor, number, at = float(message[:4].view(np.float32)[0]), int(message[4:HEAD].view(np.uint32)[0]), HEAD
    gradients[:] = 0.0
    for _ in range(number):
        length = compress.length_of(message[at:])
        compress.add(message[at : at + length], gradients)
        at += length
    if at != message.size:
        raise compress.PayloadError(f"{message.size - at:,} bytes follow the last of {number}")
    return factor


class ParameterServerExchange(CenterExchange):
    """Pushes the pending gradients of worker threads and pulls the center."""

    def __init__(self, options: RoundOptions, weights: np.ndarray, context: RoundContext, thread: int = 0) -> None:
        super().__init__(options, weights, context, thread)
        self.alpha = 1.0
        self._pending: dict[int, PendingGradients] = {}
        self._codecs: dict[int, ShardCodecs] = {}
        self._encodes = options.codec != DENSE
        self._sum = np.empty_like(weights)
        if self._encodes:
            compress.compile_kernels(codec_of(options))
        if thread == 0:
            self._compare_pushes()

    def pending(self, thread: int) -> PendingGradients:
        """Where a worker thread's gradients add up until they are pushed."""
        local = self.context.local
        if thread not in self._pending:
            gradients = local.memory.array(f"gradients of thread {thread}", self.weights.shape, np.float32)
            self._pending[thread] = PendingGradients(gradients, local.factor())
            if self._encodes:
                self._codecs[thread] = self._codecs_of(thread)
                local.unsent[thread] = gradients, self._codecs[thread].state
        return self._pending[thread]

    def _codecs_of(self, thread: int) -> ShardCodecs:
        local = self.context.local
        name, seed = f"codec of thread {thread}", (self.context.replicas.rank, thread)
        return ShardCodecs(
            codec_of(self.options), self.shards, local.replica.layers, seed,
            lambda numbers: local.memory.array(name, (numbers,), np.float64),
        )  # fmt: skip

    def reference(self, snapshot: np.ndarray, active: bool) -> np.ndarray:
        """The center after the step by what is pushed; a push ends with the factor of the learning rate."""
        self.context.local.sent.by_thread[self.thread] += 1  # before it is taken out of the pending gradients
        return self.ask(EXCHANGE, self._encoded() if self._encodes else self._dense())

    @property
    def _remembers(self) -> bool:
        """Whether this is the first trainer and the sync PSs' optimizer has state to fetch."""
        return self.context.replicas.rank == 0 and bool(self.context.local.optimizer.state())

    @property
    def _own(self) -> str:
        """The prefix of state that only this trainer, of this number of trainers, can resume."""
        return f"trainer {self.context.replicas.rank} of {self.context.replicas.size}/"

    def state(self) -> dict[str, np.ndarray]:
        """On the first trainer, a copy of the sync PSs' optimizer state. On every trainer, by thread, what a codec has
        not sent and the codec's state.
        """
        arrays = {"center": self.fetch(STATE)} if self._remembers else {}
        for thread, (residual, codec) in self.context.local.unsent.items():
            arrays |= {f"{self._own}residual {thread}": residual, f"{self._own}codec {thread}": codec}
        return arrays

    def resume(self, saved: Mapping[str, np.ndarray]) -> None:
        """Restore the state of the sync PSs' optimizer and the pending gradients. The latter are dropped if the number
        of trainers has changed: redistributing them could count some gradients twice.
        """
        if self._remembers:
            self.ask(STATE, self.shards_of(saved["center"]))
        residuals, codecs = (_by_thread(saved, f"{self._own}{name} ") for name in ("residual", "codec"))
        unsent = self.context.local.unsent
        if residuals and unsent:
            threads = sorted(unsent)
            for thread, values in residuals.items():
                unsent[threads[thread % len(threads)]][0][:] += values
        elif any("residual" in name for name in saved) and self.context.replicas.rank == 0:
            why = "by another number of trainers" if unsent else "with a codec, and sync.codec = 'dense' keeps nothing"
            log.warning(f"what had not been pushed is dropped: the checkpoint was saved {why}")
        for thread, (_, state) in unsent.items():
            if thread in codecs and codecs[thread].shape == state.shape:  # else thresholds are recomputed
                state[:] = codecs[thread]

    def restore_optimizer(self, servers: Collection[int], saved: Mapping[str, np.ndarray]) -> None:
        """As the base class; the other sync PSs keep theirs."""
        if "center" in saved:
            parts = enumerate(self.shards_of(saved["center"]))
            self.ask(STATE, [shard if server in servers else shard[:0] for server, shard in parts])

    def adopt_model(self) -> None:
        """As the base class."""
        super().adopt_model()
        if self.context.local.unsent:
            log.warning("what this trainer had not pushed is lost with its memory")

    def _compare_pushes(self) -> None:
        """Before the first push: find those that an earlier process sent and no sync PS applied."""
        local, servers = self.context.local, range(len(self._servers))
        threads = local.iterations.size + local.helped.size
        local.sent = SentPushes(local.memory, threads, len(servers), "pushes to sync PSs sent")
        answers = [np.empty(COUNT, np.uint8) for _ in servers]
        self.call(APPLIED, [np.empty(0, np.uint8) for _ in servers], answers)
        for index, answer in enumerate(answers):
            local.sent.compare(index, *answer.view(np.int64).tolist())

    def _dense(self) -> list[np.ndarray]:
        """A dense push: the sum over all pending gradients of this synchronizer."""
        factor, self._sum[:] = 1.0, 0.0
        for pending in self._pending.copy().values():
            pending.move(self._sum)
            factor = pending.factor
        return [np.append(shard, np.float32(factor)) for shard in self.shards_of(self._sum)]

    def _encoded(self) -> list[np.ndarray]:
        """An encoded push of all pending gradients of this synchronizer."""
        by_thread, factor = [], 1.0
        for thread, pending in self._pending.copy().items():
            by_thread.append(pending.encode(self._codecs[thread]))
            factor = pending.factor
        sent, traffic = [payloads for payloads in by_thread if payloads], self.context.center.meter.traffic
        return [message([p[k] for p in sent], factor, traffic) for k in range(len(self._servers))]


def _by_thread(saved: Mapping[str, np.ndarray], name: str) -> dict[int, np.ndarray]:
    """Arrays whose names start with ``name``, by the number that follows."""
    return {int(key.removeprefix(name)): values for key, values in saved.items() if key.startswith(name)}


class GradientCenter(Center):
    """A sync PS's side: a shard of the weights that takes an optimizer step by every push. ``optimizer(weights)`` makes
    the optimizer, with its own state.
    """

    def __init__(self, optimizer: MakeStep, options: RoundOptions, service: Service, memory: ArrayMemory) -> None:
        super().__init__(service, memory, shared=False)
        self._encoded, self._gradients = options.codec != DENSE, np.empty(0, np.float32)
        if self._encoded:
            compress.compile_kernels(codec_of(options))
        self._optimizer, self._of_optimizer = optimizer, memory.part("optimizer", shared=False)
        self._step: Step = optimizer(self._gradients)
        self._step(self._gradients, 0.0)  # compiles now, not in the first round

    def answer(self, kind: int, client: tuple[int, int], payload: np.ndarray) -> np.ndarray:
        """As the base class; also how many pushes were applied."""
        if kind != APPLIED:
            return super().answer(kind, client, payload)
        buffer = self._service.buffer(COUNT)
        self._applied.answer(client[0], buffer)
        return buffer

    def exchange(self, client: tuple[int, int], words: np.ndarray, reply: np.ndarray) -> None:
        """The weights after the step."""
        if self._encoded:
            factor = read_push(words.view(np.uint8), self._gradients)
            self._step(self._gradients, factor)
        else:
            self._step(words[:-1], float(words[-1]))
        self._applied.by_client[client[0]] += 1
        reply[:] = self.shard

    def state(self) -> np.ndarray:
        """The optimizer state of this shard."""
        return self._step.state

    def reset(self) -> None:
        """Also the optimizer starts again."""
        self._step.state[:] = self._optimizer(self.shard).state

    def allocate(self, values: np.ndarray) -> None:
        """Also the optimizer state of the shard, and the count of pushes."""
        super().allocate(values)
        self._applied = AppliedPushes(self._own, self._service.size)
        self._step, self._gradients = self._optimizer(self.shard), np.empty_like(self.shard)
        self._step.state = placed(self._of_optimizer, self._step.state)
