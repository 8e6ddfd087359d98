"""Elastic averaging SGD, S-EASGD and FR-EASGD (Zhang, Choromanska, LeCun, NeurIPS 2015; ShadowSync, arXiv 2003.03477)::

    d   = alpha (w_i - c)          both lines from the old values, so that w_i + c is conserved
    w_i = w_i - d                  on the trainer, by the difference to its snapshot
    c   = c + d                    on the sync PSs, shard by shard

Centralised and asynchronous: a trainer exchanges with the center alone, and waits for no other trainer.
What n trainers learn is shared by n + 1 vectors, so all move at n / (n + 1) of the speed of model averaging: half, with
one.

In the background the gap between two rounds changes with the load, and with it the pull per iteration. With
``coupling`` = kappa above 0 the pull is the same whatever the gap: alpha = 1 - (1 - kappa)^gap, where the gap is the
iterations since this client exchanged this fragment (for a shadow thread, of all worker threads of its trainer).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numba import njit

from ssmpi import compress
from ssmpi.comm.rank_memory import RankMemory
from ssmpi.comm.service import Service
from ssmpi.comm.shared_lock import SharedLock, leave, take
from ssmpi.core.settings import require
from ssmpi.core.topology import Topology
from ssmpi.core.traffic import Link
from ssmpi.sync.base import shards
from ssmpi.sync.center import Centered
from ssmpi.sync.center_shard import COUPLE, EXCHANGE, Center, MakeStep
from ssmpi.sync.options import DENSE, RoundOptions
from ssmpi.sync.peers import Peers
from ssmpi.sync.selected import SelectedEntries, choosing_error, chosen_bytes, pull_at


@dataclass(frozen=True)
class EASGDOptions:
    """``[sync.easgd]``: ``coupling`` per iteration; above 0 it overrides ``alpha``."""

    coupling: float = 0.0

    def __post_init__(self) -> None:
        require(0 <= self.coupling < 1, f"coupling must be in [0, 1), got {self.coupling}")


@njit(cache=True, nogil=True)
def pull_center(center: np.ndarray, snapshot: np.ndarray, alpha: float, old: np.ndarray) -> None:
    """old = center; center += alpha (snapshot - center)."""
    a = np.float32(alpha)
    for i in range(center.shape[0]):
        old[i] = center[i]
        center[i] -= a * (center[i] - snapshot[i])


@njit(cache=True, nogil=True)
def pull_together(center: np.ndarray, replica: np.ndarray, alpha: float) -> None:
    """center and replica by alpha of their difference towards each other, in place: both lines of the exchange."""
    a = np.float32(alpha)
    for i in range(center.shape[0]):
        d = a * (center[i] - replica[i])
        center[i] -= d
        replica[i] += d


@njit(cache=True, nogil=True)
def pull_alone(lock: int, center: np.ndarray, replica: np.ndarray, alpha: float) -> bool:
    """``pull_together`` while holding a lock; False, and nothing has moved, where that was not to be had."""
    if not take(lock):
        return False
    pull_together(center, replica, alpha)
    leave(lock)
    return True


class EASGD(Centered):
    """Pulls replica and center towards each other."""

    Options: ClassVar[type] = EASGDOptions
    in_place = True

    def __init__(self, options: RoundOptions, weights: np.ndarray, peers: Peers, thread: int = 0) -> None:
        super().__init__(options, weights, peers, thread)
        self._chosen: SelectedEntries | None = None
        if options.codec != DENSE:
            parts = shards(weights.size, len(self.fragments), len(self._servers))
            self._chosen = SelectedEntries(options, parts, self.fetch(), peers.local, thread)
        self._coupling = options.own(EASGDOptions).coupling
        self._exchanged = [0] * len(self.fragments)
        for shard in self.mapped:
            nothing = np.empty(0, np.float32)
            self.move(shard.lock, nothing, nothing, 0.0)  # compiles now, not in the first round

    @classmethod
    def codec_error(cls, options: RoundOptions) -> str:
        """Some entries are exchanged, each of them as it would be in a whole exchange."""
        if options.merge != "difference":
            return "moves only the entries that are exchanged: set sync.merge = 'difference'"
        if options.own(EASGDOptions).coupling:
            return "has entries that exchange at gaps of their own: set sync.easgd.coupling = 0"
        return choosing_error(options)

    @classmethod
    def round_bytes(cls, options: RoundOptions, topology: Topology, parameters: int) -> dict[Link, float]:
        """With a codec the chosen entries there, and their values back."""
        if options.codec == DENSE:
            return super().round_bytes(options, topology, parameters)
        there, back = chosen_bytes(options, shards(parameters, options.fragments, topology.sync_ps))
        return {Link.CENTER_PUSH: there, Link.CENTER_PULL: back}

    @classmethod
    def words_beside(cls, options: RoundOptions) -> int:
        """The pull, where it is coupled."""
        return 1 if options.own(EASGDOptions).coupling else 0

    @staticmethod
    def server(options: RoundOptions, optimizer: MakeStep, service: Service, memory: RankMemory) -> Center:
        """A center that is pulled."""
        return ElasticCenter(options, service, memory)

    def exchange(self, snapshot: np.ndarray, fragment: int, active: bool) -> np.ndarray:
        """The center as it was; the sync PSs move it towards the snapshot by the same d."""
        if self._chosen:
            return self._exchange_some(self._chosen, snapshot, fragment)
        if self._coupling:
            self.alpha = self.pull(fragment)
            self.send_all(COUPLE, [np.array([self.alpha], np.float32)] * len(self._servers))
        return self.ask(EXCHANGE, fragment, self.shards_of(snapshot, fragment))

    def _exchange_some(self, chosen: SelectedEntries, snapshot: np.ndarray, fragment: int) -> np.ndarray:
        """The center where it is exchanged, the snapshot elsewhere."""
        messages = chosen.choose(self.snapshot, fragment, self.peers.center.meter.traffic)
        answers, part = chosen.answers(), self.fragments[fragment]
        self.call(EXCHANGE, messages, answers)
        self._reply[part] = snapshot
        chosen.refer(self.snapshot, answers, self.alpha, self._reply)
        return self._reply[part]

    def close(self) -> None:
        """As the base class; with a codec the last exchange is of all that the center has not heard of."""
        if self._chosen:
            self._chosen.closing = True
        super().close()
        if self._chosen:
            self._chosen.closing = False

    def restart(self) -> None:
        """As the base class: the center begins where all replicas are."""
        super().restart()
        if self._chosen:
            self._chosen.seen[:] = self.weights

    def move(self, lock: SharedLock, center: np.ndarray, replica: np.ndarray, alpha: float) -> None:
        """Pull both."""
        if not pull_alone(lock.file, center, replica, alpha):
            with lock:  # a signal has interrupted the wait; or this says what is wrong with the lock
                pull_together(center, replica, alpha)

    def pull(self, fragment: int) -> float:
        """The coupling's alpha after so many iterations, where there is a coupling."""
        if not self._coupling:
            return self.alpha
        done = self.iterations
        gap, self._exchanged[fragment] = done - self._exchanged[fragment], done
        return 1.0 - (1.0 - self._coupling) ** gap


class ElasticCenter(Center):
    """Is pulled towards each snapshot by ``alpha``, or by what the client said before."""

    def __init__(self, options: RoundOptions, service: Service, memory: RankMemory) -> None:
        self._encoded = options.codec != DENSE
        if self._encoded:
            compress.compile_kernels(options.codec)
        super().__init__(
            options.fragments, service, memory, shared=options.transport != "messages" and not self._encoded
        )
        self._alpha = options.alpha
        self._alphas: dict[tuple[int, int], float] = {}
        nothing = np.empty(0, np.float32)
        pull_center(nothing, nothing, 0.0, nothing)  # compiles now, not in the first round

    def exchange(self, fragment: int, client: tuple[int, int], words: np.ndarray, reply: np.ndarray) -> None:
        """The old values, and a step towards the snapshot; or both at the entries that are sent."""
        if self._encoded:
            places, values = compress.entries(words.view(np.uint8), self.shards[fragment].size)
            pull_at(self.shards[fragment], places, values, self._alpha, reply)
            return
        pull_center(self.shards[fragment], words, self._alphas.get(client, self._alpha), reply)

    def reply_bytes(self, fragment: int, payload: np.ndarray) -> int:
        """By a codec, a word for each entry."""
        if self._encoded:
            return 4 * compress.count_of(payload)[1]
        return super().reply_bytes(fragment, payload)

    def set_alpha(self, client: tuple[int, int], words: np.ndarray) -> None:
        """The alpha of this client's next exchange."""
        self._alphas[client] = float(words[0])
