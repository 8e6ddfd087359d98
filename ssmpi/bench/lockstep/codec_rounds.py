"""Rounds with a codec among replicas of one process, with the accounts, codecs and messages of ``ssmpi.sync``: pushes
of gradients and pulls of weights (``async_ps``), and elastic exchanges of some entries (``easgd``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ssmpi.bench.lockstep.rounds import CenterRounds, ElasticRounds, MeanRounds
from ssmpi.comm.rank_memory import ProcessMemory
from ssmpi.core.protocols import DenseStep
from ssmpi.core.traffic import ENTRIES, SENT, Link, Traffic
from ssmpi.model.options import DenseOptions
from ssmpi.roles.sync_ps import optimizer
from ssmpi.sync import pushes
from ssmpi.sync.async_ps import AccumulatingStep
from ssmpi.sync.average import reduced_bytes
from ssmpi.sync.elastic_mirrors import ClientMirrors, ReplicaMirrors
from ssmpi.sync.mean_mirrors import WEIGHT, MeanMirrors
from ssmpi.sync.mirrors import whole_codec
from ssmpi.sync.options import DENSE, RoundOptions
from ssmpi.sync.pulls import PulledCenter, PullMirrors
from ssmpi.sync.pushes import Encoders, PendingGradients


@dataclass(frozen=True)
class Pushing:
    """What pushes need in addition: the settings of the center's optimizer, the ends of the vector's layers, and the
    number of worker threads per trainer. Without ``feedback`` the entries that a codec does not send are discarded, as
    a control for error feedback.
    """

    dense: DenseOptions = field(default_factory=DenseOptions)
    layers: Sequence[int] = ()
    threads: int = 1
    feedback: bool = True


class PushRounds(CenterRounds):
    """The center takes a step for each push; trainers take turns within the gap."""

    def __init__(
        self, options: RoundOptions, replicas: Sequence[np.ndarray], gap: float, staleness: int, pushing: Pushing
    ) -> None:
        super().__init__(options, replicas, gap, staleness)
        self.alpha, self._pushing, self._options = 1.0, pushing, options
        self._sum = np.empty_like(self._center)
        self._step, size = optimizer(pushing.dense)(self._center), self._center.size
        self._traffic = Traffic(on=True)
        self._pulls = [PulledCenter(options, [[slice(0, size)]], size) for _ in replicas]
        self._mirrors = PullMirrors(options, len(replicas)) if options.pull_codec != DENSE else None
        self._fetch()
        self._accounts = [
            [PendingGradients(np.zeros_like(self._center), 1.0) for _ in range(pushing.threads)] for _ in replicas
        ]
        whole = [[slice(0, size)]]
        self._encoders = [
            [Encoders(options, whole, pushing.layers, ProcessMemory(), (k, t)) for t in range(pushing.threads)]
            for k in range(len(replicas))
        ]

    def optimizer(self, trainer: int, thread: int, own: DenseStep) -> DenseStep:
        """An optimizer that steps the replica and accumulates the gradients for the next push."""
        return AccumulatingStep(own, self._accounts[trainer][thread])

    @property
    def figures(self) -> dict[str, float]:
        """As the base class, with the traffic."""
        return {**super().figures, **traffic_of(self._traffic)}

    def _exchange(self, tick: int, trainer: int) -> None:
        snapshot = self.replicas[trainer].copy()
        self._step(self._sum, self._push(trainer))
        self.move(tick, trainer, self._pull(trainer), snapshot)
        self.count += 1

    def close(self) -> None:
        """As the base class; then all trainers fetch the center, which is scored."""
        super().close()
        self._fetch()

    def _fetch(self) -> None:
        """Every trainer fetches the whole center, and receives only its changes from then on."""
        if self._mirrors:
            for k, pulled in enumerate(self._pulls):
                pulled.center[:] = self._center
                self._mirrors.fetched((k, 0), 0, self._center)

    def _pull(self, trainer: int) -> np.ndarray:
        """A copy of the center, or of the trainer's mirror of it."""
        if self._mirrors is None:
            self._traffic.add(Link.CENTER_PULL, self._center.nbytes)
            return self._center.copy()
        payload = self._mirrors.answer((trainer, 0), 0, self._center)
        self._traffic.add(Link.CENTER_PULL, payload.size)
        self._pulls[trainer].receive(0, [payload])
        return self._pulls[trainer].center.copy()

    def _push(self, trainer: int) -> float:
        """Encode and decode the sum as a push to the center; returns the factor of its learning rate."""
        accounts = self._accounts[trainer]
        if self._options.codec == DENSE:
            self._sum[:] = 0.0
            for account in accounts:
                account.move(slice(0, self._sum.size), self._sum)
            self._traffic.add(Link.CENTER_PUSH, self._sum.nbytes + 4)
            return accounts[-1].factor
        found = [account.encode(e, 0) for account, e in zip(accounts, self._encoders[trainer], strict=True)]
        payloads = [payload for of_thread in found if of_thread for payload in of_thread]
        message = pushes.message(payloads, accounts[-1].factor, self._traffic)
        self._traffic.add(Link.CENTER_PUSH, message.size)
        if not self._pushing.feedback:
            for account in accounts:
                account.gradients[:] = 0.0
        return pushes.read_push(message, self._sum)


class MirroredRounds(ElasticRounds):
    """Elastic exchanges by mirrors, or of whole vectors with ``dense``."""

    def __init__(
        self, options: RoundOptions, replicas: Sequence[np.ndarray], gap: float, staleness: int, pushing: Pushing
    ) -> None:
        super().__init__(options, replicas, gap, staleness)
        size, self._traffic = self._center.size, Traffic(on=True)
        self._trainers: list[ReplicaMirrors] = []
        if options.codec == DENSE:
            return
        parts, whole = [[slice(0, size)]], [whole_codec(size)]
        self._trainers = [ReplicaMirrors(options, parts, pushing.layers, (k, 0), size) for k in range(len(replicas))]
        self._clients = [ClientMirrors(options, whole, (len(replicas), k, 0)) for k in range(len(replicas))]

    @property
    def figures(self) -> dict[str, float]:
        """As the base class, with the traffic."""
        return {**super().figures, **traffic_of(self._traffic)}

    def close(self) -> None:
        """As the base class, with rounds of whole vectors; the next part begins with such rounds too."""
        self._begin()
        super().close()
        self._begin()

    def _begin(self) -> None:
        for trainer in self._trainers:
            trainer.replica.begin()

    def _exchange(self, tick: int, trainer: int) -> None:
        if not self._trainers:
            super()._exchange(tick, trainer)
            sent = back = self._center.nbytes
        else:
            own, client = self._trainers[trainer], self._clients[trainer]
            (payload,) = own.replica.encode(self.replicas[trainer], 0, self._traffic)
            answer = client.exchange(0, payload, self._center, self.alpha)
            own.receive([answer], 0)
            sent, back = payload.size, answer.size
            was = np.empty((2, self._center.size), np.float32)
            own.move(slice(None), self.alpha, *was)
            self.move(tick, trainer, *was)
            self.count += 1
        self._traffic.add(Link.CENTER_PUSH, sent)
        self._traffic.add(Link.CENTER_PULL, back)


class MirroredMeanRounds(MeanRounds):
    """Model averaging by mirrors, or by an all-reduce with ``dense``."""

    def __init__(
        self, options: RoundOptions, replicas: Sequence[np.ndarray], gap: float, staleness: int, pushing: Pushing
    ) -> None:
        super().__init__(options, replicas, gap, staleness)
        n, size, self._traffic = len(replicas), replicas[0].size, Traffic(on=True)
        self._trainers: list[MeanMirrors] = []
        if options.codec != DENSE:
            self._trainers = [
                MeanMirrors(options, pushing.layers, (k, n), np.zeros(size, np.float32)) for k in range(n)
            ]

    @property
    def figures(self) -> dict[str, float]:
        """As the base class, with the traffic of all trainers."""
        return {**super().figures, **traffic_of(self._traffic)}

    def average(self, tick: int, counted: Sequence[int]) -> None:
        """As the base class."""
        n = len(self.replicas)
        if not self._trainers:
            super().average(tick, counted)
            self._traffic.add(Link.TRAINERS, n * reduced_bytes(self.replicas[0].nbytes + 4, n))
            return
        for trainer, own in enumerate(self._trainers):
            for owner, payload in enumerate(own.replica.encode(self.replicas[trainer], 0, self._traffic)):
                if owner != trainer:
                    self._trainers[owner].receive_replica(trainer, payload, 0)
                    self._traffic.add(Link.TRAINERS, WEIGHT + payload.size)
        active = [trainer in counted for trainer in range(n)]
        for owner, own in enumerate(self._trainers):
            payload = own.answer(active, 0, self._traffic)
            for trainer, other in enumerate(self._trainers):
                if owner != trainer:
                    other.receive_mean(owner, payload, 0)
                    self._traffic.add(Link.TRAINERS, payload.size)
        for trainer, own in enumerate(self._trainers):
            replica_was = np.empty_like(self.replicas[trainer])
            self.move(tick, trainer, own.move(0, self.alpha, replica_was).copy(), replica_was)
        self.count += 1

    def close(self) -> None:
        """As the base class; then all receive the pending part of the mean."""
        super().close()
        pending = sum((own.pending for own in self._trainers), np.zeros_like(self.replicas[0]))
        for replica in self.replicas if self._trainers else []:
            replica += np.float32(self.alpha) * pending
        for own in self._trainers:
            own.pending[:] = 0.0
            own.begin()


def traffic_of(traffic: Traffic) -> dict[str, float]:
    """Payload bytes in both directions, and the share of the entries that a codec has sent."""
    counts = traffic.by_name()
    density = {"density": counts[SENT] / counts[ENTRIES]} if counts[ENTRIES] else {}
    sent = counts["bytes_center_push"] + counts["bytes_trainers"]
    return {"push_bytes": sent, "pull_bytes": counts["bytes_center_pull"], **density}
