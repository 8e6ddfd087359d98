"""Asynchronous dense parameter servers: push gradients, pull weights (Downpour SGD; Dean et al., NeurIPS 2012)::

    on the trainer    a = a + g;  w_i = w_i - optimizer(g)          every step; a: what is not pushed yet
    a round           push a, a = 0;  pull c;  w_i = w_i + c - snapshot_i
    on the sync PSs   c = c - optimizer(a)          SGD or Adagrad as [dense] says, with the PSs' own accumulators

At ``fixed_rate`` with ``every_iterations = 1`` it is plain asynchronous SGD, with k it is Downpour with n_push =
n_fetch = k; in the shadow pace pushing and pulling run beside training, and each step takes the lock of its thread's
pending gradients, which is free but while a push empties them. ``alpha`` is not used: the sync PSs hold the weights.
Every gradient gets there, those of a trainer's end too; between a trainer's pull and its next push the center takes
n - 1 pushes of others on average, which is the staleness of its gradients.

With a ``codec`` a push holds of a what the codec sends, and the rest stays in a, thread by thread (``pushes``). It is
part of checkpoints; at the end of a run it is lost to the center. With a ``pull_codec`` c is this trainer's copy of the
center, a mirror (``gradient_center``); otherwise pulls are dense.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from ssmpi.runtime.protocols import DenseModel, DenseStep
from ssmpi.runtime.topology import Role, Topology
from ssmpi.runtime.traffic import Link
from ssmpi.sync.base import SYNC_PS, Synchronizer
from ssmpi.sync.codecs import codec_of, expected_bytes, pull_codec_of
from ssmpi.sync.cost import RoundCost
from ssmpi.sync.options import DENSE, RoundOptions
from ssmpi.sync.push_pull import PushPull
from ssmpi.sync.pushes import HEAD, PendingGradients
from ssmpi.sync.shards import shards


@dataclass(frozen=True)
class AsyncPSOptions:
    """``[sync.async_ps]`` has no settings of its own."""


class AccumulatingStep:
    """The trainer's optimizer, which also accumulates the gradients to push."""

    def __init__(self, optimizer: DenseStep, pending: PendingGradients) -> None:
        self._optimizer, self._pending = optimizer, pending

    def step(self, model: DenseModel, factor: float) -> None:
        """One step."""
        self._pending.add(model.arrays[1], factor)
        self._optimizer.step(model, factor)


class AsyncPS(Synchronizer):
    """Pushes what its worker threads' gradients add up to and follows the weights of the sync PSs."""

    Options: ClassVar[type] = AsyncPSOptions
    partner = SYNC_PS
    steps_elsewhere = True
    no_codec = ""
    exchange: PushPull

    @classmethod
    def cost(cls, options: RoundOptions, topology: Topology, parameters: int) -> RoundCost:
        """The vector there, with the factor of the learning rate for each sync PS, and back; with codecs, the expected
        bytes at the configured density, the time for every thread's payload in a push and for a pull, and for pulls
        each client's mirror at both ends, its payload, and one difference. The pending gradients of each thread are
        kept.
        """
        parts, clients = (
            shards(parameters, options.fragments, topology.sync_ps),
            options.clients(topology.replica_lanes),
        )
        messages, own = topology.sync_ps * options.fragments, topology.replica_lanes // clients
        pushed, pulled, each, mirrors = 4.0 * (parameters + messages), 4.0 * parameters, 0.0, {}
        if options.codec != DENSE:
            pushed = HEAD * messages + own * expected_bytes(codec_of(options), parts)
            each += own * codec_of(options)[0].nanoseconds.push
        if options.pull_codec != DENSE:
            kind, asked = pull_codec_of(options)
            pulled = expected_bytes((kind, replace(asked, share=_pulled_share(options, topology))), parts)
            each += kind.nanoseconds.send + kind.nanoseconds.receive
            mirrors = {Role.TRAINER: clients, Role.SYNC_PS: 2 * clients * topology.replicas + 1}
        sent = {Link.CENTER_PUSH: pushed, Link.CENTER_PULL: pulled}
        return RoundCost(sent, 1e-9 * parameters * each, topology.replica_lanes, mirrors)

    def optimizer(self, thread: int) -> AccumulatingStep:
        """Steps the replica and keeps the gradients for the next push."""
        return AccumulatingStep(self.context.local.optimizer, self.exchange.pending(thread))

    def last_rounds(self) -> None:
        """Push what is left of the threads that this synchronizer serves. What a codec holds back stays."""
        for _ in self.fragments:
            self.round()


def _pulled_share(options: RoundOptions, topology: Topology) -> float:
    """The share of the entries that a pull drops: as configured, or of those that did not change, if that is more;
    between two pulls of one thread all threads push.
    """
    (kind, own), (pushing, pushed) = pull_codec_of(options), codec_of(options)
    if not (kind.takes_share and pushing.takes_share):
        return own.share
    return max(own.share, 1.0 - topology.lanes * (1.0 - pushed.share))
