"""Rounds with a codec among replicas of one process, by the accounts, codecs and messages of ``ssmpi.sync``: pushes of
gradients and pulls of weights (``async_ps``), and elastic exchanges of some entries (``easgd``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ssmpi import compress
from ssmpi.bench.lockstep.rounds import CenterRounds, ElasticRounds
from ssmpi.comm.rank_memory import ProcessMemory
from ssmpi.core.protocols import DenseStep
from ssmpi.core.traffic import ENTRIES, SENT, Link, Traffic
from ssmpi.model.options import DenseOptions
from ssmpi.roles.sync_ps import optimizer
from ssmpi.sync import pushes
from ssmpi.sync.async_ps import AccumulatingStep
from ssmpi.sync.options import DENSE, RoundOptions
from ssmpi.sync.peers import LocalTrainer, ReplicaMemory
from ssmpi.sync.pulls import PulledCenter, PullMirrors
from ssmpi.sync.pushes import Encoders, PendingGradients
from ssmpi.sync.selected import SelectedEntries, pull_at


@dataclass(frozen=True)
class Pushing:
    """What pushes need besides rounds: the settings of the center's optimizer, where the vector's layers end, worker
    threads of a trainer. Without ``feedback`` what a codec does not send is lost: the control for error feedback.
    """

    dense: DenseOptions = field(default_factory=DenseOptions)
    layers: Sequence[int] = ()
    threads: int = 1
    feedback: bool = True


class PushRounds(CenterRounds):
    """The center takes a step by each push; trainers take turns within the gap."""

    def __init__(
        self, options: RoundOptions, replicas: Sequence[np.ndarray], gap: float, staleness: int, pushing: Pushing
    ) -> None:
        super().__init__(options, replicas, gap, staleness)
        self.alpha, self._pushing, self._options = 1.0, pushing, options
        self._sum = np.empty_like(self._center)
        self._step, size = optimizer(pushing.dense)(self._center), self._center.size
        self._traffic = Traffic(on=True)
        self._pulls = [PulledCenter(options, [[slice(0, size)]], size) for _ in replicas]
        self._mirrors = PullMirrors(options) if options.pull_codec != DENSE else None
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
        """Steps the replica and keeps the gradients for the next push."""
        return AccumulatingStep(own, self._accounts[trainer][thread])

    @property
    def figures(self) -> dict[str, float]:
        """Also of the traffic."""
        return {**super().figures, **traffic_of(self._traffic)}

    def _exchange(self, tick: int, trainer: int) -> None:
        snapshot = self.replicas[trainer].copy()
        self._step(self._sum, self._push(trainer))
        self.move(tick, trainer, self._pull(trainer), snapshot)
        self.count += 1

    def close(self) -> None:
        """As the base class; then the center is scored, which all fetch for it."""
        super().close()
        self._fetch()

    def _fetch(self) -> None:
        """Every trainer has the whole center, and is told what changes from there."""
        if self._mirrors:
            for k, pulled in enumerate(self._pulls):
                pulled.center[:] = self._center
                self._mirrors.fetched((k, 0), 0, self._center)

    def _pull(self, trainer: int) -> np.ndarray:
        """The center, or what the trainer is told of it; a copy."""
        if self._mirrors is None:
            self._traffic.add(Link.CENTER_PULL, self._center.nbytes)
            return self._center.copy()
        payload = self._mirrors.answer((trainer, 0), 0, self._center)
        self._traffic.add(Link.CENTER_PULL, payload.size)
        self._pulls[trainer].receive(0, [payload])
        return self._pulls[trainer].center.copy()

    def _push(self, trainer: int) -> float:
        """Make the sum what the center is pushed; the factor of its learning rate."""
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


class SelectedRounds(ElasticRounds):
    """Elastic exchanges of the entries that a codec chooses; with ``dense`` of all."""

    def __init__(
        self, options: RoundOptions, replicas: Sequence[np.ndarray], gap: float, staleness: int, pushing: Pushing
    ) -> None:
        super().__init__(options, replicas, gap, staleness)
        self._traffic, local = Traffic(on=True), LocalTrainer(replica=ReplicaMemory(layers=tuple(pushing.layers)))
        whole = [[slice(0, self._center.size)]]
        self._chosen = [
            SelectedEntries(options, whole, self._center.copy(), local, k) if options.codec != DENSE else None
            for k in range(len(replicas))
        ]

    @property
    def figures(self) -> dict[str, float]:
        """Also of the traffic."""
        return {**super().figures, **traffic_of(self._traffic)}

    def close(self) -> None:
        """As the base class, of all entries."""
        for chosen in filter(None, self._chosen):
            chosen.closing = True
        super().close()
        for chosen in filter(None, self._chosen):
            chosen.closing = False

    def _exchange(self, tick: int, trainer: int) -> None:
        chosen, snapshot = self._chosen[trainer], self.replicas[trainer].copy()
        if chosen is None:
            super()._exchange(tick, trainer)
            sent = back = snapshot.nbytes
        else:
            (payload,), (old,) = chosen.choose(snapshot, 0, self._traffic), chosen.answers()
            pull_at(self._center, *compress.entries(payload, snapshot.size), self.alpha, old)
            reference, sent, back = snapshot.copy(), payload.size, old.nbytes
            chosen.refer(snapshot, [old], self.alpha, reference)
            self.move(tick, trainer, reference, snapshot)
            self.count += 1
        self._traffic.add(Link.CENTER_PUSH, sent)
        self._traffic.add(Link.CENTER_PULL, back)


def traffic_of(traffic: Traffic) -> dict[str, float]:
    """Payload there and back, and the share of the entries that a codec has sent."""
    counts = traffic.by_name()
    density = {"density": counts[SENT] / counts[ENTRIES]} if counts[ENTRIES] else {}
    return {"push_bytes": counts["bytes_center_push"], "pull_bytes": counts["bytes_center_pull"], **density}
