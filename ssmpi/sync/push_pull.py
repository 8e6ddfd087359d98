"""Exchanges of gradients for weights: a push of what worker threads' gradients add up to, and a pull of the center,
each dense or by a codec.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np

from ssmpi import compress
from ssmpi.compress import MirrorReceiver, ShardCodecs
from ssmpi.runtime.files.log import log
from ssmpi.runtime.mpi.push_counts import COUNT, SentPushes
from ssmpi.sync import pushes
from ssmpi.sync.center import CenterExchange
from ssmpi.sync.center_shard import APPLIED, EXCHANGE, FETCH, STATE
from ssmpi.sync.codecs import codec_of, pull_codec_of
from ssmpi.sync.options import DENSE, RoundOptions
from ssmpi.sync.pushes import PendingGradients
from ssmpi.sync.round_context import RoundContext


class PushPull(CenterExchange):
    """Pushes the pending gradients of worker threads and pulls the center."""

    def __init__(self, options: RoundOptions, weights: np.ndarray, context: RoundContext, thread: int = 0) -> None:
        super().__init__(options, weights, context, thread)
        self.alpha = 1.0
        self._pending: dict[int, PendingGradients] = {}
        self._codecs: dict[int, ShardCodecs] = {}
        self._encodes = options.codec != DENSE
        self._pulled: MirrorReceiver | None = None  # the center
        self._sum = np.empty_like(weights)
        if self._encodes:
            compress.compile_kernels(codec_of(options))
        if options.pull_codec != DENSE:
            compress.compile_kernels(pull_codec_of(options))
            self._pulled = MirrorReceiver(self.shards)
            self.fetch()
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

    def reference(self, snapshot: np.ndarray, fragment: int, active: bool) -> np.ndarray:
        """The center after the step by what is pushed; a push ends with the factor of the learning rate."""
        self.context.local.sent.by_thread[self.thread] += 1  # before it is taken out of the pending gradients
        messages = self._encoded(fragment) if self._encodes else self._dense(fragment)
        if self._pulled is None:
            return self.ask(EXCHANGE, fragment, messages)
        for server, answer in enumerate(self.call_for_payloads(fragment, messages)):
            self._pulled.receive(answer, fragment, server)
        return self._pulled.copy[self.fragments[fragment]]

    def fetch(self, kind: int = FETCH) -> np.ndarray:
        """As the base class; a mirror restarts from the center that is fetched."""
        found = super().fetch(kind)
        if self._pulled and kind == FETCH:
            self._pulled.copy[:] = found
        return found

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
        found = {"center": self.fetch(STATE)} if self._remembers else {}
        for thread, (residual, codec) in self.context.local.unsent.items():
            found |= {f"{self._own}residual {thread}": residual, f"{self._own}codec {thread}": codec}
        return found

    def resume(self, saved: Mapping[str, np.ndarray]) -> None:
        """Restore the state of the sync PSs' optimizer and the pending gradients. The latter are dropped if the number
        of trainers has changed: redistributing them could count some gradients twice.
        """
        if self._remembers:
            for fragment in range(len(self.fragments)):
                self.ask(STATE, fragment, self.shards_of(saved["center"], fragment))
        residuals, codecs = (pushes.by_thread(saved, f"{self._own}{name} ") for name in ("residual", "codec"))
        unsent = self.context.local.unsent
        if residuals and unsent:
            pushes.take_back({thread: residual for thread, (residual, _) in unsent.items()}, residuals)
        elif any("residual" in name for name in saved) and self.context.replicas.rank == 0:
            why = "by another number of trainers" if unsent else "with a codec, and sync.codec = 'dense' keeps nothing"
            log.warning(f"what had not been pushed is dropped: the checkpoint was saved {why}")
        for thread, (_, state) in unsent.items():
            if thread in codecs and codecs[thread].shape == state.shape:  # else thresholds are recomputed
                state[:] = codecs[thread]

    def remember(self, servers: Collection[int], saved: Mapping[str, np.ndarray]) -> None:
        """As the base class; the other sync PSs keep theirs."""
        if "center" not in saved:
            return
        for fragment in range(len(self.fragments)):
            shards = self.shards_of(saved["center"], fragment)
            self.ask(STATE, fragment, [shard if i in servers else shard[:0] for i, shard in enumerate(shards)])

    def join(self) -> None:
        """As the base class."""
        super().join()
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

    def _dense(self, fragment: int) -> list[np.ndarray]:
        """A dense push: the sum over all pending gradients of this synchronizer."""
        factor = pushes.total(self._pending.copy().values(), self.fragments[fragment], self._sum)
        return [np.append(shard, np.float32(factor)) for shard in self.shards_of(self._sum, fragment)]

    def _encoded(self, fragment: int) -> list[np.ndarray]:
        """An encoded push of all pending gradients of this synchronizer."""
        by_thread, factor = [], 1.0
        for thread, pending in self._pending.copy().items():
            by_thread.append(pending.encode(self._codecs[thread], fragment))
            factor = pending.factor
        sent, traffic = [payloads for payloads in by_thread if payloads], self.context.center.meter.traffic
        return [pushes.message([p[k] for p in sent], factor, traffic) for k in range(len(self._servers))]
